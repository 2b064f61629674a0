"""Values of a job: what it is, and what goes from stage to stage."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.data.cluster.shared import Shared
from bert_jax.data.corpus.dedup import Totals, kept_bytes
from bert_jax.data.corpus.output import PARTS
from bert_jax.data.corpus.request import Request
from bert_jax.data.corpus.survey import Looked

# The folder of the tokenizer, in the output.
TOKENIZER = "tokenizer"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A corpus that is asked for, and where it is made."""

    request: Request
    output: Shared
    sample_bytes: int
    ranges: int  # of hashes, in each of which duplicates are found at once: at most 2**32

    @property
    def folder(self) -> Shared:
        """Returns the folder of what the stages leave for each other."""
        return self.output / PARTS

    def looked(self, folder: Path) -> Looked:
        # Which documents are the sample, all units together say.
        return self.request.looked(folder, 0)


class Hashes(NamedTuple):
    """The documents of a unit whose hashes lie in one range."""

    unit: int
    numbers: bytes  # of the documents, uint32
    hashes: bytes  # that they are known by, uint64


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


SAMPLED = np.dtype([("priority", "<u8"), ("size", "<u4"), ("unit", "<u4"), ("number", "<u4")])


class Candidates(NamedTuple):
    """Training documents of which the tokenizer's sample may be made."""

    rows: bytes

    @classmethod
    def lowest(cls, budget: int, several: Iterable["Candidates"]) -> "Candidates":
        """Returns those of the lowest priority, up to and with the one that fills a budget, as
        `survey.Lowest` keeps them; the lowest come first.
        """
        rows = np.concatenate([np.empty(0, SAMPLED), *(each.array for each in several)])
        rows = rows[np.lexsort((rows["number"], rows["unit"], rows["priority"]))]
        before = np.cumsum(rows["size"], dtype=np.int64) - rows["size"]
        return cls(rows[before < budget].tobytes())

    @property
    def array(self) -> np.ndarray:
        return np.frombuffer(self.rows, SAMPLED)
