"""The tokenizer of a corpus: given, or trained on a sample of the documents."""

import functools
import hashlib
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.decide import Counts, Fate, Whole, decided_of
from bert_jax.data.corpus.folder import Folder
from bert_jax.data.corpus.job import Job, Unit, by_unit
from bert_jax.data.corpus.look import Found
from bert_jax.data.corpus.options import VOCAB_SIZE
from bert_jax.data.corpus.store import SPLITS
from bert_jax.data.language import marks
from bert_jax.data.language.sentences import sentences_of
from bert_jax.data.tokenizer import training
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import BertJaxError
from bert_jax.progress import note

# The largest share of words that may lose a mark: in English, words of foreign origin are fewer.
_FEW_MARKED = 0.01


class SharedTokenizer(NamedTuple):
    """The tokenizer in the corpus's folder."""

    hash: str
    size: int


@functools.lru_cache(maxsize=1)
def loaded(folder: Folder, of: SharedTokenizer) -> Tokenizer:
    """Returns the tokenizer in a folder. Raises BertJaxError if it is another tokenizer."""
    with folder.here() as path:
        tokenizer = load_tokenizer(path)
    if tokenizer.hash != of.hash:
        raise BertJaxError(f"another job is writing {folder}: run the command again")
    return tokenizer


def keep_given(job: Job, tokenizer: Tokenizer) -> None:
    """Writes a given tokenizer to the folder of this attempt."""
    _write(job.scratch / "given", tokenizer)


def given(job: Job, _: Iterable[tuple[int, Counts]], __: Whole) -> SharedTokenizer:
    """Writes the given tokenizer to the corpus's folder, after the sources have been checked."""
    with (job.scratch / "given").here() as path:
        return _put(job, load_tokenizer(path))


def _put(job: Job, tokenizer: Tokenizer) -> SharedTokenizer:
    """Writes a tokenizer to the corpus's folder, replacing any other."""
    job.folder.remove([f"trained/{name}" for name in (job.folder / "trained").names()])
    written = _write(job.tokenizer, tokenizer)
    job.tokenizer.remove([name for name in job.tokenizer.names() if name not in written])
    return SharedTokenizer(tokenizer.hash, tokenizer.vocab_size)


def _write(folder: Folder, tokenizer: Tokenizer) -> set[str]:
    """Writes the files of a tokenizer. Returns their names."""
    with tempfile.TemporaryDirectory() as local:
        tokenizer.save(Path(local))
        files = {file.name: file.read_bytes() for file in sorted(Path(local).iterdir())}
    for name, data in files.items():
        folder.write(name, data)
    return {*files}


# --- the sample -----------------------------------------------------------------------------------

# A training document that may be in the sample.
_SAMPLED = np.dtype([("priority", "<u8"), ("digest", "<u8"), ("size", "<u4"), ("unit", "<u4"),
                     ("number", "<u4")])  # fmt: skip


def candidates(job: Job, number: int, _: Counts) -> list[bytes]:
    """Returns the training documents of a unit that may be in the sample: _SAMPLED [documents]."""
    found, decided = Found.load(job, number).documents, decided_of(job, number)
    is_trained_on = (decided["fate"] == Fate.KEPT) & (decided["split"] == SPLITS.index("train"))
    (trained_on,) = np.nonzero(is_trained_on)
    rows = np.empty(len(trained_on), _SAMPLED)
    for name in ("priority", "digest", "size"):
        rows[name] = found[name][trained_on]
    rows["unit"], rows["number"] = number, trained_on
    return [lowest(job.sample_bytes, [rows.tobytes()])]


def lowest(budget: int, several: Iterable[bytes]) -> bytes:
    """Returns the candidates of the lowest priorities, in ascending order, up to and including the
    one that fills a budget of bytes. The result does not depend on the order of merging.
    """
    rows = np.frombuffer(b"".join(several), _SAMPLED)
    # The pieces of one long document have the same priority.
    rows = rows[np.lexsort((~rows["digest"], rows["priority"]))]
    before = np.cumsum(rows["size"], dtype=np.int64) - rows["size"]
    return rows[before < budget].tobytes()


def wanted(sample: bytes) -> list[tuple[int, list[int]]]:
    """Returns the documents of the sample by unit."""
    rows = np.frombuffer(sample, _SAMPLED)
    return [(unit, numbers.tolist()) for unit, numbers in by_unit(rows["unit"], rows["number"])]


def gather(
    job: Job, number: int, unit: Unit, wanted: Iterable[Sequence[int]]
) -> list[dict[tuple[int, int], int]]:
    """Writes the concatenated texts of some documents of a unit to a file. Returns their sizes by
    unit and number.
    """
    numbers = {each for several in wanted for each in several}
    if not numbers:
        return []
    last, sizes = max(numbers), dict[tuple[int, int], int]()
    with job.scratch.writing(_texts(number)) as stream:
        for at, text in enumerate(unit.texts(Found.load(job, number).findings.files)):
            if at in numbers:
                sizes[number, at] = stream.write(text)
            if at == last:
                break
    return [sizes]


def _texts(unit: int) -> str:
    return f"texts/{unit:06}"


def train(
    job: Job, gathered: Iterable[dict[tuple[int, int], int]], sample: bytes, whole: Whole
) -> SharedTokenizer:
    """Trains the tokenizer on the sample, or loads it if an earlier attempt trained it."""
    texts: dict[tuple[int, int], bytes] = {}
    for sizes in gathered:
        data, end = memoryview(job.scratch.read(_texts(next(iter(sizes))[0]))), 0
        for place, size in sizes.items():
            texts[place], end = bytes(data[end : end + size]), end + size
    rows = np.frombuffer(sample, _SAMPLED)
    in_order = [texts.pop((int(row["unit"]), int(row["number"]))) for row in rows]
    key = hashlib.sha256(json.dumps(job.described, sort_keys=True).encode())
    for text in in_order:
        key.update(hashlib.blake2b(text, digest_size=16).digest())
    marker = f"tokenizer-{key.hexdigest()}"
    if (job.folder / "trained").has(marker):
        return SharedTokenizer(*json.loads((job.folder / "trained").read(marker)))
    documents = whole.counts.of(Fate.KEPT)["train"]
    note(
        f"train {job.options.tokenizer} on {sum(map(len, in_order)) / 1e6:.1f} MB of text "
        f"({len(in_order):,} of {documents:,} training documents)"
    )
    shared = _put(job, _trained(job, in_order))
    (job.folder / "trained").write(marker, json.dumps(shared).encode())
    return shared


def _trained(job: Job, texts: Sequence[bytes]) -> Tokenizer:
    options = job.options
    kind, size = options.tokenizer, options.vocab_size or VOCAB_SIZE
    sentences = [
        piece if kind == "bpe" else piece.lstrip(" ")
        for text in texts
        # In running text a space precedes a word, which is part of the word in byte-level BPE.
        for pieces in sentences_of(text.decode(), options.rules)
        for piece in pieces
    ]
    case, accents = options.folds_case, options.strips_accents
    if kind == "wordpiece" and accents is None and case:
        accents = _loses_few_marks(sentences)
    return training.train_tokenizer(
        kind, sentences, vocab_size=size, lowercase=case, strip_accents=accents
    )


def _loses_few_marks(lines: Sequence[str]) -> bool:
    """Returns whether few words would lose a mark. In English few do, and BERT's uncased
    vocabularies strip accents. Prints a note otherwise.
    """
    found = marks.words(lines)
    if found.losing <= _FEW_MARKED * found.total:
        return True
    note(
        f"{found.losing / found.total:.1%} of the words have marks that lower-casing would strip "
        f"({', '.join(found.examples)}): the marks are kept; `strip_accents` yes strips them, as "
        "BERT's uncased vocabularies do"
    )
    return False
