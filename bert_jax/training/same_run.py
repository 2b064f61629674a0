"""Whether a workdir's run is the one that is asked for, field by field.

Each field of the config is free to change on resumption, or may change if the user says so
(`--allow-change FIELD`), or defines the run.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax import config as configs
from bert_jax import resolve
from bert_jax.config import TrainConfig, nearest
from bert_jax.data.store import Corpus
from bert_jax.errors import ResumeRefused, UsageError

# They change how or how often, never which numbers come out beyond rounding.
FREE = (
    "name",
    "mesh.",
    "evaluation.",
    "checkpoint.",
    "log_every_steps",
    "deadline_seconds",
    "data.num_workers",
    "data.prefetch",
    "data.verify",
    "compute.remat",
    "compute.layers",
    "compute.gather",
    "optimizer.max_skipped_updates",
)
# They change the numbers to come, and nothing that is saved: a longer run, a lower rate, more text.
WITH_FLAG = (
    "optimizer.",
    "phases",
    "data.",
    "compute.dtype",
    "model.hidden_dropout_prob",
    "model.attention_probs_dropout_prob",
    "corpus",
)
# The rest is refused: shapes, heads, the seed, the tokenizer, where the run began.

Change = tuple[str, Any, Any]


def classify(field: str) -> str:
    """`free`, `flag` or `refused`, of a dotted field."""
    if field.startswith(FREE):
        return "free"
    return "flag" if field.startswith(WITH_FLAG) else "refused"


def require(
    stored_path: Path,
    config: TrainConfig,
    corpus: Corpus,
    *,
    init_from: str | None,
    has_steps: bool,
    allowed: Sequence[str] = (),
    name: str,
) -> list[Change]:
    """The allowed changes between the run that `stored_path` (config.json) describes and this one.

    `allowed` names fields of the middle kind. Raises ResumeRefused, with each field, its old and
    its new value, if others differ; UsageError for a name in `allowed` that is no such field.
    """
    stored = json.loads(stored_path.read_text(encoding="utf-8"))
    old = configs.flatten(resolve.load_json(stored_path))
    new = configs.flatten(config)
    _require_known(allowed, old.keys() | new.keys())
    changes = [
        (field, old.get(field, "absent"), new.get(field, "absent"))
        for field in sorted(old.keys() | new.keys())
        if old.get(field, "absent") != new.get(field, "absent") and classify(field) != "free"
    ]
    was = stored.get("corpus") or {}
    if was.get("fingerprint") != corpus.fingerprint:
        changes.append(("corpus", str(was.get("fingerprint"))[:12], corpus.fingerprint[:12]))
    if "tokenizer_hash" in was and was["tokenizer_hash"] != corpus.tokenizer_hash:
        changes.append(("tokenizer", was["tokenizer_hash"][:12], corpus.tokenizer_hash[:12]))
    beginning = stored.get("init_from")
    # What a run began from matters until its first checkpoint; later the flag may be left out.
    if beginning != init_from and not (has_steps and init_from is None):
        changes.append(("--init-from", beginning, init_from))

    refused = [c for c in changes if classify(c[0]) != "flag" or c[0] not in allowed]
    if refused:
        listed = "; ".join(f"{field}: {was!r} -> {now!r}" for field, was, now in refused)
        by_flag = [field for field, _, _ in refused if classify(field) == "flag"]
        remedy = "Use the same config and corpus to resume it"
        if by_flag:
            flags = " ".join(f"--allow-change {field}" for field in by_flag)
            remedy += f" (or go on with the change: {flags})"
        raise ResumeRefused(
            f"workdir {name} holds a run that differs: {listed}. {remedy}, or another --workdir "
            f"(with --init-from {name} to start from its parameters)."
        )
    return changes


def _require_known(allowed: Sequence[str], fields: Any) -> None:
    known = {f for f in (*fields, "corpus") if classify(f) == "flag"}
    for field in allowed:
        if field not in known:
            why = "may change without it" if classify(field) == "free" else "defines the run"
            what = why if field in fields else f"is no field.{nearest(field, known)}"
            raise UsageError(f"--allow-change {field}: {field} {what}")
