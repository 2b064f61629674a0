"""Combines several corpora into one mixture for training.

The splits of the sources are concatenated, and the documents of a source have spans of the combined
split. Code that reads the tokens of a row therefore does not need to know the source.
"""

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.corpus.store import SPLITS, Corpus, Split, open_corpus, read_keys
from bert_jax.data.offsets import Offsets
from bert_jax.errors import UsageError

# One corpus directory, or several by the names of the sources.
CorpusPlace = Path | str | Mapping[str, Path] | Mapping[str, str]


def open_corpora(place: CorpusPlace, *, verify: Collection[str] = ()) -> Corpus:
    """Opens one corpus, or several as one, as `open_corpus` does.

    Raises the exceptions of `open_corpus`, and UsageError if two corpora have different tokenizers
    or are the same.
    """
    if not isinstance(place, Mapping):
        return open_corpus(place, verify=verify)
    if not place:
        raise UsageError("no corpus is named; name a corpus directory")
    found = {name: open_corpus(place[name], verify=verify) for name in sorted(place)}
    if len(found) == 1:
        return next(iter(found.values()))
    return mixed(found)


def mixed(sources: Mapping[str, Corpus]) -> Corpus:
    """Returns one corpus that combines these `sources`.

    The `manifest` has counts, the mean entropy, the mean share of unknown tokens over all training
    tokens, the language and the origins. Raises UsageError for incompatible corpora.
    """
    (name, first), *others = sources.items()
    for i, (other_name, other) in enumerate(others):
        if other.tokenizer_hash != first.tokenizer_hash:
            raise UsageError(
                f"the corpora {name} ({first.directory}) and {other_name} ({other.directory}) have "
                f"different tokenizers: {first.vocab_size:,} tokens with hash "
                f"{first.tokenizer_hash[:12]}, and {other.vocab_size:,} with hash "
                f"{other.tokenizer_hash[:12]}; prepare {other_name} again with "
                f"`tokenizer` {first.directory}"
            )
        for before, corpus in [(name, first), *others[:i]]:
            if corpus.fingerprint == other.fingerprint:
                raise UsageError(
                    f"the corpora {before} ({corpus.directory}) and {other_name} "
                    f"({other.directory}) have the same text; name it once, with a weight "
                    "(data.source_weights)"
                )
    splits = {split: _joined(split, sources) for split in SPLITS}
    return dataclasses.replace(
        first,
        manifest=_manifest(sources),
        fingerprint=_digest({name: corpus.fingerprint for name, corpus in sources.items()}),
        begins_word=np.any([corpus.begins_word for corpus in sources.values()], axis=0),
        train=splits["train"],
        validation=splits["validation"],
        sources={
            name: dataclasses.replace(
                corpus, **{split: _part(splits[split], split, sources, name) for split in SPLITS}
            )
            for name, corpus in sources.items()
        },
    )


def trained_elsewhere(
    held_out: Mapping[str, Corpus], trained: Mapping[str, Corpus]
) -> dict[tuple[str, str], int]:
    """Returns the number of held-out documents of each corpus that are training text of another
    corpus in `trained`, by the names of both.
    """
    found: dict[tuple[str, str], int] = {}
    for name, source in held_out.items():
        keys = read_keys(source.directory, "validation")
        for other, corpus in trained.items():
            if corpus.fingerprint != source.fingerprint:
                count = int(np.isin(keys, read_keys(corpus.directory, "train")).sum())
                found |= {(name, other): count} if count else {}
    return found


def compared_entropy(
    described: Mapping[str, Any],
    sources: Mapping[str, Mapping[str, Any]],
    scores: Mapping[str, Mapping[str, Any]],
) -> float:
    """Returns the unigram entropy to compare held-out scores with, in nats.

    Each corpus is described by its manifest. With several `sources` it is their mean, weighted by
    predictions: a source with few held-out documents has fewer predictions.
    """
    counts = [scores.get(f"validation/{name}", {}).get("mlm_count") or 0 for name in sources]
    if not any(counts):
        return described["unigram_entropy_nats"]
    each = [source["unigram_entropy_nats"] for source in sources.values()]
    return float(np.average(each, weights=counts))


def _joined(split: str, sources: Mapping[str, Corpus]) -> Split:
    splits: list[Split] = [getattr(corpus, split) for corpus in sources.values()]
    return Split(
        name=split,
        shards=tuple(shard for each in splits for shard in each.shards),
        shard_starts=Offsets.join([each.shard_starts for each in splits])[:],
        sentence_starts=Offsets.join([each.sentence_starts for each in splits]),
        document_starts=Offsets.join([each.document_starts for each in splits]),
    )


def _part(whole: Split, split: str, sources: Mapping[str, Corpus], name: str) -> Split:
    """Returns the documents of one source as spans of the combined sentences."""
    splits: list[Split] = [getattr(corpus, split) for corpus in sources.values()]
    place = list(sources).index(name)
    own = splits[place]
    return dataclasses.replace(
        whole,
        name=f"{name} {split}",
        document_starts=own.document_starts,
        sentence_starts=Offsets.join([own.sentence_starts]).shifted(
            sum(each.tokens for each in splits[:place])
        ),
    )


def _digest(fingerprints: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(fingerprints, sort_keys=True).encode()).hexdigest()


def _manifest(sources: Mapping[str, Corpus]) -> dict[str, Any]:
    manifests = [corpus.manifest for corpus in sources.values()]
    tokens = [corpus.train.tokens for corpus in sources.values()]
    languages = {manifest["options"].get("language") for manifest in manifests}

    def mean(values: Sequence[float]) -> float:
        return float(np.average(values, weights=tokens))

    return {
        "tokenizer": manifests[0]["tokenizer"],
        "counts": {
            split: {
                name: sum(manifest["counts"][split][name] for manifest in manifests)
                for name in ("documents", "sentences", "tokens")
            }
            for split in SPLITS
        },
        "options": {"language": languages.pop() if len(languages) == 1 else None},
        "sources": [source for manifest in manifests for source in manifest["sources"]],
        # The mean over held-out rows: each source has equally many.
        "unigram_entropy_nats": float(np.mean([m["unigram_entropy_nats"] for m in manifests])),
        "corpora": len(manifests),
        "unknown_share": {"train": mean([m["unknown_share"]["train"] for m in manifests])},
    }
