"""Compares the inputs of a pre-training run, other than its config, with the inputs of a resume."""

from pathlib import Path
from typing import Any

from bert_jax.config.resume import Change, differences
from bert_jax.data.corpus.store import Corpus

SOURCES = "corpora"


def input_changes(
    stored: dict[str, Any], corpus: Corpus, *, init_from: str | None, has_steps: bool
) -> list[Change]:
    """Returns the changes between the inputs that a config.json records and these inputs."""
    changes: list[Change] = []
    was = stored.get("corpus") or {}
    if SOURCES in was and corpus.sources:
        old = {name: each["fingerprint"][:12] for name, each in was[SOURCES].items()}
        new = {name: each.fingerprint[:12] for name, each in corpus.sources.items()}
        changes += [(f"corpus.{name}", *values) for name, *values in differences(old, new)]
    elif was.get("fingerprint") != corpus.fingerprint:
        changes.append(("corpus", str(was.get("fingerprint"))[:12], corpus.fingerprint[:12]))
    if "tokenizer_hash" in was and was["tokenizer_hash"] != corpus.tokenizer_hash:
        changes.append(("tokenizer", was["tokenizer_hash"][:12], corpus.tokenizer_hash[:12]))
    beginning = stored.get("init_from")
    if is_same_place(beginning, init_from):
        beginning = init_from
    # The initial parameters matter until the first checkpoint. Later `init_from` may be left out.
    if beginning != init_from and not (has_steps and init_from is None):
        changes.append(("`init_from`", beginning, init_from))
    return changes


def is_same_place(one: str | None, other: str | None) -> bool:
    """Returns whether two names lead to one place: a folder has several paths."""
    if one is None or other is None:
        return one == other
    return one == other or Path(one).resolve() == Path(other).resolve()
