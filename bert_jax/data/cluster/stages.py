"""The stages of a job: functions of a unit, a range of hashes or a shard, or of a line from each.

They know no engine. Between them go numbers, digests and names of files, never text; what is larger
lies in the job's folder, whole or not at all, under a name that its content or its unit decides. So
each may run several times, anywhere, also at once.
"""

import atexit
import contextlib
import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.cluster.found import keep_found, read_digests, read_found
from bert_jax.data.cluster.reports import reported
from bert_jax.data.cluster.shared import Shared
from bert_jax.data.cluster.values import (
    SAMPLED,
    TOKENIZER,
    Candidates,
    Decided,
    EncodedPiece,
    Hashes,
    Job,
    SharedTokenizer,
    UnitCounts,
    Whole,
    by_range,
    by_unit,
)
from bert_jax.data.corpus.dedup import Totals, decide, order_of
from bert_jax.data.corpus.encode import Encoding, encode_to_file, texts_by_piece, tokens_of
from bert_jax.data.corpus.join import JoinedSplit, Shard, manifest_of, shards, write_shard
from bert_jax.data.corpus.prepare import note_what_is_unknown
from bert_jax.data.corpus.preview import beginning, note_findings
from bert_jax.data.corpus.store import MANIFEST, SPLITS, describe_file
from bert_jax.data.corpus.survey import Unit, gather, look_through
from bert_jax.data.corpus.trained_tokenizer import train_or_find
from bert_jax.data.language import scripts
from bert_jax.data.language.guess import note_other_language
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import BertJaxError, DataDamaged


@reported
def look(job: Job, unit: Unit) -> list[tuple[int, Hashes]]:
    """Reads a unit, and leaves what was found. Returns what its documents are known by, in each
    range.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = look_through(job.looked(Path(folder)), unit, None)
    keep_found(job, unit.number, found)
    hashes = found.words
    return [
        (of, Hashes(unit.number, at.astype(np.uint32).tobytes(), hashes[at].tobytes()))
        for of, at in by_range(job, hashes)
    ]


def _known(of: int) -> str:
    return f"known/{of:06}.u64"


@reported
def losers(job: Job, of: int, words: Iterable[Hashes]) -> list[tuple[int, bytes]]:
    """Finds the duplicates in one range of hashes: all but the first document, in the order of the
    sources, of each. Returns their numbers by unit, and leaves the hashes.
    """
    several = [*words]
    hashes = np.concatenate([np.frombuffer(each.hashes, np.uint64) for each in several])
    numbers = np.concatenate([np.frombuffer(each.numbers, np.uint32) for each in several])
    sizes = [len(each.numbers) // 4 for each in several]
    units = np.repeat(np.array([each.unit for each in several], np.int64), sizes)
    order = np.lexsort((numbers, units, hashes))
    hashes, numbers, units = hashes[order], numbers[order], units[order]
    is_first = np.append(True, hashes[1:] != hashes[:-1])
    job.scratch.write(_known(of), hashes[is_first].astype("<u8").tobytes())
    return [(unit, lost.tobytes()) for unit, lost in by_unit(units[~is_first], numbers[~is_first])]


@reported
def decide_unit(job: Job, unit: Unit, duplicates: Iterable[bytes]) -> Decided:
    """Decides what becomes of the documents of a unit, of which some are duplicates."""
    request, found = job.request, read_found(job, unit.number)
    is_new = np.ones(len(found.words), bool)
    for numbers in duplicates:
        is_new[np.frombuffer(numbers, np.uint32)] = False
    fraction = None if request.held_out else request.validation_fraction
    decisions = decide(unit, found, is_new, fraction)
    totals = Totals(request.sources, request.held_out)
    totals.count(found, decisions)
    trained_on = np.flatnonzero(decisions == SPLITS.index("train"))
    rows = np.empty(len(trained_on), SAMPLED)
    rows["priority"], rows["size"] = found.priorities[trained_on], found.sizes[trained_on]
    rows["digest"] = np.ascontiguousarray(found.digests[trained_on]).view(">u8")
    rows["unit"], rows["number"], rows["is_dropped"] = unit.number, trained_on, False
    return Decided(
        unit.number,
        decisions.tobytes(),
        found.sizes.astype(np.uint32).tobytes(),
        hashlib.sha256(found.digests.tobytes()).digest(),
        totals,
        Candidates.lowest(job.sample_bytes, [Candidates(rows.tobytes())]),
    )


@reported
def assign(job: Job, lines: Iterable[UnitCounts]) -> Whole:
    """Says of each unit how much text is kept before it.

    Raises UsageError for what is wrong with the sources.
    """
    whole = Whole({}, Totals(job.request.sources, job.request.held_out))
    sums = dict.fromkeys(SPLITS, 0)
    for line in sorted(lines, key=lambda line: line.unit):
        whole.begun[line.unit] = dict(sums)
        whole.totals.add(line.totals)
        sums = {split: sums[split] + line.kept[split] for split in SPLITS}
    note_findings(job.request, whole.totals)
    whole.totals.check(whole.totals.documents)
    return whole


def wanted(sample: Candidates) -> list[tuple[int, list[int]]]:
    """Returns the documents of the sample by unit."""
    rows = sample.array
    return [(unit, numbers.tolist()) for unit, numbers in by_unit(rows["unit"], rows["number"])]


@reported
def gather_unit(job: Job, unit: Unit, numbers: Sequence[int]) -> dict[tuple[int, int], Any]:
    """Leaves the texts of some documents of a unit. Returns where each is: offset and size."""
    unit = unit.without(frozenset(read_found(job, unit.number).findings.files))
    with tempfile.TemporaryDirectory() as folder:
        places = gather(job.looked(Path(folder)), unit, frozenset(numbers))
        for file in {place.file for place in places.values()}:
            job.scratch.keep(_texts(unit.number), file)
    return {(unit.number, n): (place.offset, place.size) for n, place in places.items()}


def _texts(unit: int) -> str:
    return f"texts/{unit:06}"


@reported
def vocabulary(
    job: Job, sample: Candidates, gathered: Iterable[Mapping[tuple[int, int], Any]], whole: Whole
) -> SharedTokenizer:
    """Trains the tokenizer on the sample, or takes the one that is given."""
    request = job.request
    places = {at: place for found in gathered for at, place in found.items()}
    files: dict[int, bytes] = {
        unit: job.scratch.read(_texts(unit)) for unit in {unit for unit, _ in places}
    }
    texts: list[bytes] = []
    for row in sample.array:
        offset, size = places[int(row["unit"]), int(row["number"])]
        texts.append(files[int(row["unit"])][offset : offset + size])
    looked_at = beginning(texts)
    if request.language is None:
        note_other_language(looked_at)
    with tempfile.TemporaryDirectory() as folder:
        there, marks = Path(folder, TOKENIZER), Path(folder, "marks")
        marks.mkdir()
        for name in _marks(job).names() if request.trains else ():
            _marks(job).fetch(name, marks)
        if not request.trains or [*marks.iterdir()]:
            there.mkdir()
            for name in (job.output / TOKENIZER).names():
                (job.output / TOKENIZER).fetch(name, there)
        if request.trains:
            documents = whole.totals.documents["train"]
            tokenizer = train_or_find(request, texts, there, marks, documents=documents)
            names = keep_tokenizer(job, tokenizer)
            for mark in marks.iterdir():  # after the files that it stands for
                _marks(job).keep(mark.name, mark)
        else:
            tokenizer, names = load_tokenizer(there), sorted(file.name for file in there.iterdir())
    is_spaceless = request.by_character or scripts.is_mostly_spaceless(looked_at)
    return SharedTokenizer(tokenizer.hash, tokenizer.vocab_size, tuple(names), is_spaceless)


def _marks(job: Job) -> Shared:
    """Returns the folder of what says of which sample the tokenizer that is there was made."""
    return job.folder / "trained"


def keep_tokenizer(job: Job, tokenizer: Tokenizer) -> list[str]:
    """Puts a tokenizer where all stages look for it, in the place of another one. Returns the names
    of its files.
    """
    _marks(job).remove([*_marks(job).names()])
    there = job.output / TOKENIZER
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(folder)
        names = sorted(file.name for file in folder.iterdir())
        for name in names:
            there.keep(name, folder / name)
    there.remove([name for name in there.names() if name not in names])
    return names


@functools.lru_cache(maxsize=1)
def _tokenizer_here(output: Shared, of: SharedTokenizer) -> Path:
    """Returns a folder of this process with the tokenizer."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    folder = Path(tempfile.mkdtemp(prefix="bert-jax-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in of.files:
        (output / TOKENIZER).fetch(name, folder)
    if load_tokenizer(folder).hash != of.hash:
        raise BertJaxError(f"{output / TOKENIZER} is written by another job: run the command again")
    return folder


@reported
def encode(
    job: Job, unit: Unit, decided: Decided, begun: Mapping[str, int], of: SharedTokenizer
) -> list[EncodedPiece]:
    """Encodes what is kept of a unit, but for pieces that are there."""
    tokenizer = _tokenizer_here(job.output, of)
    decisions = np.frombuffer(decided.decisions, np.uint8)
    sizes = np.frombuffer(decided.sizes, np.uint32)
    order = order_of(decisions, sizes, begun, decided.digest)
    unit = unit.without(frozenset(decided.totals.findings.files))
    pieces: list[EncodedPiece] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoding = Encoding(tokenizer, of.hash, folder, job.request.rules)
        for split, part, key, texts in texts_by_piece(encoding, unit, order):
            tokens = _tokens_of_piece(job, key, folder)
            if tokens is None:
                file = folder / _piece(key)
                encode_to_file(encoding, texts, file)
                (job.folder / "pieces").keep(file.name, file)
                tokens = tokens_of(file)
                file.unlink()
            pieces.append(EncodedPiece(split, part, unit.number, key, tokens))
    return pieces


def _piece(key: str) -> str:
    return f"{key}.npz"


def _tokens_of_piece(job: Job, key: str, folder: Path) -> int | None:
    """Returns how many tokens a piece has that is there, and None for one that is not, or is
    damaged.
    """
    pieces, name = job.folder / "pieces", _piece(key)
    if not pieces.has(name):
        return None
    file = pieces.fetch(name, folder)
    with contextlib.suppress(DataDamaged):
        return tokens_of(file)
    return None


def cut_shards(pieces: Iterable[EncodedPiece]) -> list[tuple[str, tuple[str, ...]]]:
    """Returns the shards that the pieces of all units make: the stem of its files, and the keys of
    its pieces.
    """
    by_part: dict[str, dict[int, list[EncodedPiece]]] = {split: {} for split in SPLITS}
    for piece in sorted(set(pieces)):
        by_part[piece.split].setdefault(piece.part, []).append(piece)
    found: list[tuple[str, tuple[str, ...]]] = []
    for split, parts in by_part.items():
        measured = (
            (sum(piece.tokens for piece in part), [piece.key for piece in part])
            for part in parts.values()
        )
        found += [(f"{split}/{n:05}", tuple(keys)) for n, keys in enumerate(shards(measured))]
    return found


@reported
def write(job: Job, stem: str, keys: Sequence[str], of: SharedTokenizer) -> tuple[str, Shard]:
    """Writes a shard."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / stem).parent.mkdir()
        pieces = job.folder / "pieces"
        there = [pieces.fetch(_piece(key), folder) for key in keys]
        try:
            shard = write_shard(None, folder, stem, there, of.size)
        except DataDamaged as error:  # which removes the copy
            damaged = [file.name for file in there if not file.exists()]
            pieces.remove(damaged)
            raise DataDamaged(
                f"{pieces}/{damaged[0]} was damaged and is removed now: run the same command again"
            ) from error
        for made in shard.files:
            job.output.keep(made, folder / made)
    return stem, shard


@reported
def finish(
    job: Job, written: Iterable[tuple[str, Shard]], of: SharedTokenizer, whole: Whole
) -> str:
    """Writes corpus.json, last of all. Returns the fingerprint."""
    totals = whole.totals
    joined = {split: JoinedSplit(Path(), split, of.size) for split in SPLITS}
    for stem, shard in sorted(dict(written).items()):
        joined[stem.partition("/")[0]].take(shard)
    for split in SPLITS:
        joined[split].counts["duplicate_documents"] += totals.duplicates[split]
    totals.check({split: joined[split].counts["documents"] for split in SPLITS})
    hashed = hashlib.sha256()
    for digests in read_digests(job, sorted(whole.begun)):
        hashed.update(digests)
    with tempfile.TemporaryDirectory() as folder:
        digests = Path(folder, "00000.u64")
        known = job.scratch / "known"
        with digests.open("wb") as stream:
            for hashes in known.read_several(sorted(known.names())):
                stream.write(hashes)
            if stream.tell() != 8 * (totals.total - sum(totals.duplicates.values())):
                raise BertJaxError(f"{job.folder} is written by another job: run the command again")
        job.output.keep(f"digests/{digests.name}", digests)
        described = {f"digests/{digests.name}": describe_file(digests)}
    tokenizer = load_tokenizer(_tokenizer_here(job.output, of))
    manifest = manifest_of(
        job.request,
        tokenizer,
        joined,
        totals,
        source_hash=hashed.hexdigest(),
        digests=described,
        skipped_files={name: str(error) for name, error in totals.findings.files.items()},
        is_spaceless=of.is_spaceless,
    )
    for split in SPLITS:  # of a job before this one, whose shards ended elsewhere
        left = [f"{split}/{n}" for n in (job.output / split).names()]
        job.output.remove([name for name in left if name not in manifest["files"]])
    job.output.write(MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
    note_what_is_unknown(joined, is_trained=job.request.trains)
    return manifest["fingerprint"]
