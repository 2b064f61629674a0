"""Hashes that the documents of a corpus are known by, kept for those that are added later.

A file has the hashes of one `prepare`, 8 bytes a document, ascending, little-endian.
"""

import re
from pathlib import Path

import numpy as np

from bert_jax.data.corpus.store import Corpus, describe_file
from bert_jax.errors import DataDamaged

_NAME = re.compile(r"digests/[0-9]{5,}\.u64")
_TYPE = np.dtype("<u8")


def add(output: Path, before: Corpus | None, found: np.ndarray) -> dict[str, dict[str, int]]:
    """Writes one more file of hashes. Returns what the manifest says of all of them."""
    entries = {} if before is None else dict(before.manifest["digests"])
    name = f"digests/{len(entries):05}.u64"
    (output / "digests").mkdir(exist_ok=True)
    found.astype(_TYPE).tofile(output / name)
    return entries | {name: describe_file(output / name)}


def read(corpus: Corpus) -> np.ndarray:
    """Returns the hashes of all documents that the sources had: uint64, ascending.

    Raises DataDamaged for files that are missing or altered.
    """
    hashes = [np.empty(0, _TYPE)]
    for name, entry in corpus.manifest["digests"].items():
        file = corpus.directory / name
        if not _NAME.fullmatch(name) or not file.is_file() or describe_file(file) != entry:
            raise DataDamaged(
                f"{file} is missing, or is not what was written: copy the corpus again, or prepare "
                "all sources together, with another `output`"
            )
        hashes.append(np.fromfile(file, _TYPE))
    return np.sort(np.concatenate(hashes), kind="stable").astype(np.uint64)
