"""Encoded parts become the shards of a split, in the order of the sources, and are counted."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bert_jax.data.corpus.dedup import Totals
from bert_jax.data.corpus.encode import SPACE_RULES, TextCounts, read_part, tokens_of
from bert_jax.data.corpus.pool import Pool
from bert_jax.data.corpus.request import Request
from bert_jax.data.corpus.store import (
    FORMAT_VERSION,
    SPLITS,
    Corpus,
    describe_file,
    describe_tokenizer,
    fingerprint,
    shard_files,
    token_counts,
    token_type,
)
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import StorageFailed
from bert_jax.files import free_space
from bert_jax.progress import Progress, note

T = TypeVar("T")
SHARD_TOKENS = 32 << 20
# Shards that take some seconds.
_WORTH_A_BAR = 8
# How far the estimate of what is written may be from the truth.
_SURELY = 2
_COUNTS = ("documents", "sentences", "tokens", "words", "duplicate_documents", "empty_documents")


class JoinedSplit:
    """The shards of a split, and what is counted while they are written.

    With those of `before`, the corpus that is added to, whose files stay as they are.
    """

    def __init__(
        self, output: Path, split: str, vocab_size: int, *, before: Corpus | None = None
    ) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        self.text = self.added = TextCounts()  # of all text, and of what is joined now
        self.token_counts = np.zeros(vocab_size, np.int64)
        self.files: dict[str, dict[str, int]] = {}
        self._output, self._split = output, split
        if before is not None:
            self.counts.update(before.manifest["counts"][split])
            self.text += TextCounts(**before.manifest["text"][split])
            self.token_counts += token_counts(getattr(before, split), vocab_size)
            self.files |= shard_files(before.manifest, split)

    def join(self, parts: Sequence[Sequence[Path]], pool: Pool) -> None:
        """Writes consecutive parts, each of some files, as shards; several at once, in the
        processes of a pool.

        Whatever else is in the split's folder goes: of a run that was cut short.
        """
        folder = self._output / self._split
        folder.mkdir(exist_ok=True)
        for file in folder.iterdir():
            if f"{self._split}/{file.name}" not in self.files:
                file.unlink()
        jobs = [
            (self._output, f"{self._split}/{number:05}", shard, len(self.token_counts))
            for number, shard in enumerate(shards(_measured(parts)), self.begun)
        ]
        with Progress(
            f"join {self._split}", total=len(jobs), hidden=len(jobs) < _WORTH_A_BAR
        ) as progress:
            progress.describe = lambda: f"{progress.done:,} shards"
            for shard in pool.map(write_shard, jobs):
                self.take(shard)
                progress.advance()

    @property
    def begun(self) -> int:
        """Returns how many shards there are."""
        return len(self.files) // 3

    def take(self, shard: "Shard") -> None:
        """Counts the next shard."""
        self.counts.update(shard.counts)
        self.text += shard.text
        self.added += shard.text
        self.token_counts += shard.token_counts
        self.files |= shard.files

    def unknown(self, unknown_id: int) -> int:
        """Returns how many tokens are the unknown one."""
        return int(self.token_counts[unknown_id])


class Shard(NamedTuple):
    """The counts of a shard, and its files, if it has documents."""

    counts: dict[str, int]
    text: TextCounts
    token_counts: np.ndarray
    files: dict[str, dict[str, int]]


def _measured(parts: Iterable[Sequence[Path]]) -> Iterator[tuple[int, Sequence[Path]]]:
    return ((sum(map(tokens_of, files)), files) for files in parts)


def shards(parts: Iterable[tuple[int, Sequence[T]]]) -> Iterator[list[T]]:
    """Yields the pieces of each shard, of consecutive parts: the tokens and the pieces of each.

    A shard has at most SHARD_TOKENS, or a single part.
    """
    shard: list[T] = []
    tokens = 0
    for size, pieces in parts:
        if shard and tokens + size > SHARD_TOKENS:
            yield shard
            shard, tokens = [], 0
        shard += pieces
        tokens += size
    if shard:
        yield shard


def write_shard(_: Any, output: Path, stem: str, files: Sequence[Path], vocab_size: int) -> Shard:
    """Writes the pieces of a shard as its three files, which `stem` names."""
    parts = [read_part(file) for file in files]
    counts = {
        "documents": sum(len(part.documents) for part in parts),
        "sentences": sum(len(part.sentences) for part in parts),
        "tokens": sum(len(part.tokens) for part in parts),
        "words": sum(part.words for part in parts),
        "empty_documents": sum(part.empty_documents for part in parts),
    }
    token_counts = np.zeros(vocab_size, np.int64)
    for part in parts:
        token_counts += np.bincount(part.tokens, minlength=vocab_size)
    text = sum((part.text for part in parts), TextCounts())
    made: dict[str, dict[str, int]] = {}
    if counts["documents"]:
        for name, array in {
            "tokens": np.concatenate([part.tokens for part in parts]),
            "sentences": _starts([part.sentences for part in parts]),
            "documents": _starts([part.documents for part in parts]),
        }.items():
            file = f"{stem}.{name}.npy"
            np.save(output / file, array)
            made[file] = describe_file(output / file)
    return Shard(counts, text, token_counts, made)


def manifest_of(
    request: Request,
    tokenizer: Tokenizer,
    joined: Mapping[str, JoinedSplit],
    totals: Totals,
    *,
    source_hash: str,
    digests: dict[str, dict[str, int]],
    skipped_files: Mapping[str, str],
    is_spaceless: bool,
    before: Corpus | None = None,
) -> dict[str, Any]:
    """Returns the content of corpus.json.

    `totals` are those of the text that was read, `digests` the files of what its documents are
    known by, `skipped_files` those that were left out, with the reasons.
    """
    counts = {split: joined[split].counts for split in SPLITS}
    total_counts = counts["train"] + counts["validation"]
    manifest = {
        "format_version": FORMAT_VERSION,
        "tokenizer": describe_tokenizer(tokenizer, joined["train"].token_counts),
        "sources": request.sources,
        "source_hash": source_hash,
        "options": request.options,
        "counts": {
            name: {key: split_counts[key] for key in _COUNTS}
            for name, split_counts in [*counts.items(), ("total", total_counts)]
        },
        "unigram_entropy_nats": _entropy(joined["train"].token_counts),
        "text": {split: joined[split].text._asdict() for split in SPLITS},
        "files": joined["train"].files | joined["validation"].files,
        "digests": digests,
        "versions": {
            **{name: version(name) for name in ("sentencex", "tokenizers")},
            "space_rules": SPACE_RULES,
        },
    }
    unknown = {split: joined[split].unknown(tokenizer.special.unk) for split in SPLITS}
    unknown["total"] = sum(unknown.values())
    if unknown["total"]:
        counted = manifest["counts"]
        manifest["unknown_share"] = {
            name: round(count / counted[name]["tokens"], 6) for name, count in unknown.items()
        }
    manifest |= _fields_of_text(joined, is_spaceless=is_spaceless)
    noted = {
        "validation_sources": request.held_out,
        "skipped_files": dict(skipped_files),
        "skipped_records": dict(totals.findings.records),
        "records_without_text": totals.findings.without_text,
    }
    if request.near_duplicates is not None:
        noted["near_duplicate_documents"] = totals.near_duplicates
        manifest["versions"]["rensa"] = version("rensa")
    if request.contamination is not None:
        noted["contaminated_documents"] = totals.contaminated
        noted["decontaminated_of"] = request.contamination.counts(totals.found_records)
    manifest |= {name: value for name, value in noted.items() if value}
    if before is not None:
        manifest = _added_to(before.manifest, manifest, documents=totals.documents)
    manifest["fingerprint"] = fingerprint(manifest)
    return manifest


def _fields_of_text(joined: Mapping[str, JoinedSplit], *, is_spaceless: bool) -> dict[str, Any]:
    """Returns what the manifest says of the text beside its counts, where there is something to
    say: what of it is lost, and, where no spaces are between words, how many characters it has.
    """
    fields: dict[str, Any] = {}
    total = sum((split.text for split in joined.values()), TextCounts())._asdict()
    lost = {name: count for name, count in total.items() if count and name != "characters"}
    if lost:
        fields["lost"] = {"of_characters": total["characters"], **lost}
    if is_spaceless:
        fields["characters"] = {name: split.text.characters for name, split in joined.items()}
    return fields


def _added_to(
    before: dict[str, Any], made: dict[str, Any], *, documents: dict[str, int]
) -> dict[str, Any]:
    """Returns the manifest of a corpus to which `documents` of either side were added.

    `made` has the sources, what was left out of them, and the counts of all text, old and new.
    """
    of_all = ("counts", "unigram_entropy_nats", "unknown_share", "lost", "characters", "text",
              "files", "digests")  # fmt: skip
    manifest = before | {name: made[name] for name in of_all if name in made}
    manifest["sources"] = [*before["sources"], *made["sources"]]
    without = before.get("records_without_text", 0) + made.get("records_without_text", 0)
    merged = {
        "skipped_files": before.get("skipped_files", {}) | made.get("skipped_files", {}),
        "skipped_records": dict(
            Counter(before.get("skipped_records", {})) + Counter(made.get("skipped_records", {}))
        ),
        "records_without_text": without,
    }
    manifest |= {name: value for name, value in merged.items() if value}
    entry = {name: made[name] for name in ("sources", "source_hash", "versions")}
    manifest["appended"] = [*before.get("appended", []), entry | {"documents": documents}]
    return manifest


def _starts(lengths: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], *lengths]).cumsum().astype(np.uint32)


def _entropy(counts: np.ndarray) -> float:
    """Returns the entropy of the distribution with these counts, in nats: the loss of the best
    constant guess.
    """
    share = counts[counts > 0] / counts.sum()
    # Of one kind of token alone it is zero, not minus zero.
    return max(0.0, float(-(share * np.log(share)).sum()))


def require_room(output: Path, parts: Path, *, text_bytes: int, vocab_size: int) -> None:
    """Raises StorageFailed where the parts and shards of so much text clearly do not fit.

    A token has about four bytes of text, and its id is written twice. Parts that an interrupted run
    has left are there already.
    """
    there = sum(part.stat().st_size for part in parts.glob("*.npz"))
    needed = text_bytes // 4 * np.dtype(token_type(vocab_size)).itemsize * 2 - there
    free = free_space(output)
    if free < needed // _SURELY:
        raise StorageFailed(
            f"{output}: no room for this text: its {text_bytes / 1e9:.3g} GB take about "
            f"{needed / 1e9:.3g} GB more while they are encoded, and {free / 1e9:.3g} GB are free; "
            "free space there, or choose another `output`"
        )
    if free < needed:
        note(
            f"warning: {output}: about {needed / 1e9:.3g} GB are needed, {free / 1e9:.3g} are free"
        )
