"""Values of a job: what it is, and what goes from stage to stage."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.data.cluster.shared import Shared
from bert_jax.data.corpus.dedup import Totals, kept_bytes
from bert_jax.data.corpus.output import PARTS
from bert_jax.data.corpus.request import Request
from bert_jax.data.corpus.survey import Looked
from bert_jax.errors import UsageError
from bert_jax.versions import installed

# The folder of the tokenizer, in the output.
TOKENIZER = "tokenizer"


def _versions(request: Request) -> dict[str, str | None]:
    """Returns the versions of the packages that decide the bytes of a corpus."""
    packages = ["bert-jax", "sentencex", "sentencepiece", "tokenizers"]
    packages += ["rensa"] if request.near_duplicates is not None else []
    return {name: installed(name).get(name) for name in packages}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A corpus that is asked for, and where it is made."""

    request: Request
    output: Shared
    sample_bytes: int
    ranges: int  # of hashes, in each of which duplicates are found at once: at most 2**32
    # A name that no other try has: what a worker of an earlier one still writes is not read.
    attempt: str = "1"
    versions: Mapping[str, str | None] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.versions:
            object.__setattr__(self, "versions", _versions(self.request))

    @property
    def folder(self) -> Shared:
        """Returns the folder of what the stages leave for each other, and for later tries."""
        return self.output / PARTS

    @property
    def scratch(self) -> Shared:
        """Returns the folder of this try."""
        return self.folder / f"try-{self.attempt}"

    def require_versions(self) -> None:
        """Raises UsageError where this machine has other packages than the one of the command."""
        for name, theirs in self.versions.items():
            if (ours := installed(name).get(name)) != theirs:
                raise UsageError(
                    f"a worker has {name} {ours}, and the command {theirs}, which decides the "
                    "bytes of the corpus: install the same there"
                )

    def looked(self, folder: Path) -> Looked:
        # Which documents are the sample, all units together say.
        return self.request.looked(folder, 0)


class Hashes(NamedTuple):
    """The documents of a unit whose hashes lie in one range."""

    unit: int
    numbers: bytes  # of the documents, uint32
    hashes: bytes  # that they are known by, uint64


def by_range(job: Job, hashes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each range that some hashes lie in, and their places. Ranges ascend as hashes do."""
    top = hashes >> np.uint64(32)
    where = (top * np.uint64(job.ranges) >> np.uint64(32)).astype(np.int64)
    for of in np.unique(where).tolist():
        yield of, np.flatnonzero(where == of)


class Decided(NamedTuple):
    """The sides of the documents of a unit, and why some are dropped."""

    unit: int
    decisions: bytes  # as in `Order`
    sizes: bytes  # of the documents, uint32
    digest: bytes  # as in `Order`
    totals: Totals
    sample: "Candidates"

    @property
    def kept(self) -> dict[str, int]:
        """Returns the bytes of text that are kept on either side."""
        return kept_bytes(np.frombuffer(self.decisions, np.uint8), self._sizes)

    @property
    def _sizes(self) -> np.ndarray:
        return np.frombuffer(self.sizes, np.uint32)


class UnitCounts(NamedTuple):
    """The counts of a unit, for the whole."""

    unit: int
    kept: dict[str, int]
    totals: Totals


class Whole(NamedTuple):
    """The counts of all units, and where each begins."""

    begun: dict[int, dict[str, int]]  # of each unit, the bytes of either side that come before it
    totals: Totals


class SharedTokenizer(NamedTuple):
    """The tokenizer of the corpus, which lies in its folder."""

    hash: str
    size: int
    files: tuple[str, ...]
    is_spaceless: bool


class EncodedPiece(NamedTuple):
    """A piece that is encoded. In the order of the corpus, pieces are in that of these lines."""

    split: str
    part: int
    unit: int
    key: str
    tokens: int


SAMPLED = np.dtype([("priority", "<u8"), ("digest", "<u8", 2), ("size", "<u4"), ("unit", "<u4"),
                    ("number", "<u4"), ("is_dropped", "?")])  # fmt: skip


class Candidates(NamedTuple):
    """Training documents of which the tokenizer's sample may be made."""

    rows: bytes

    @classmethod
    def lowest(cls, budget: int, several: Iterable["Candidates"]) -> "Candidates":
        """Returns those of the lowest priority, up to and with the one that fills a budget, as
        `survey.Lowest` keeps them; the lowest come first.
        """
        rows = np.concatenate([np.empty(0, SAMPLED), *(each.all for each in several)])
        # Pieces of one long document have one priority.
        high, low = rows["digest"].T
        rows = rows[np.lexsort((~low, ~high, rows["priority"]))]
        before = np.cumsum(rows["size"], dtype=np.int64) - rows["size"]
        return cls(rows[before < budget].tobytes())

    @property
    def all(self) -> np.ndarray:
        """Returns also those that are dropped as near duplicates, for which no other one comes."""
        return np.frombuffer(self.rows, SAMPLED)

    @property
    def array(self) -> np.ndarray:
        return self.all[~self.all["is_dropped"]]

    def without(self, numbers: np.ndarray) -> "Candidates":
        """Returns those of one unit, of which documents of these numbers are dropped."""
        rows = self.all.copy()
        rows["is_dropped"] |= np.isin(rows["number"], numbers)
        return Candidates(rows.tobytes())


def by_unit(units: np.ndarray, of_each: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each unit, and what is given of its documents."""
    order = np.argsort(units, kind="stable")
    found, starts = np.unique(units[order], return_index=True)
    return zip(found.tolist(), np.split(of_each[order], starts)[1:], strict=True)
