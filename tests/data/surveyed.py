"""The documents of sources that `prepare` keeps, computed in this process."""

import hashlib
import tempfile
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from bert_jax.data.corpus.decide import Fate, added_up, decided_of
from bert_jax.data.corpus.folder import Folder
from bert_jax.data.corpus.job import UNIT_BYTES, Job, units_of
from bert_jax.data.corpus.local import LocalEngine
from bert_jax.data.corpus.look import Found
from bert_jax.data.corpus.options import CorpusOptions
from bert_jax.data.corpus.pipeline import decided_units
from bert_jax.data.corpus.store import SPLITS
from bert_jax.data.pool import Pool
from bert_jax.data.sources.stream import SourceOptions
from bert_jax.errors import UsageError


def survey(
    sources: Sequence[str],
    *,
    validation_fraction: float,
    seed: int,
    reading: SourceOptions | None = None,
) -> tuple[Any, list[tuple[str, str]]]:
    """Returns counts by split (`documents`, `duplicates`) and `source_hash`, the hash of all texts;
    and the text and split of each kept document.
    """
    options = CorpusOptions(source=sources, validation_fraction=validation_fraction, seed=seed)  # type: ignore[arg-type]
    units = units_of([(sources, reading or SourceOptions())], UNIT_BYTES)
    with tempfile.TemporaryDirectory() as folder, Pool(1) as pool:
        job = Job(options=options, output=Folder(folder), described={}, by_character=False)
        pool.shared = job
        numbered = [(unit.number, unit) for unit in units]
        whole = added_up(decided_units(LocalEngine(job, pool), job, numbered))
        for why in whole.counts.findings.files.values():
            raise UsageError(why)
        kept: list[tuple[str, str]] = []
        digest = hashlib.sha256()
        for unit in units:
            digest.update(Found.load(job, unit.number).digest)
            for text, decided in zip(unit.texts(()), decided_of(job, unit.number), strict=True):
                if decided["fate"] == Fate.KEPT:
                    kept.append((text.decode(), SPLITS[decided["split"]]))
    counts = whole.counts
    return SimpleNamespace(
        source_hash=digest.hexdigest(),
        documents=counts.of(Fate.KEPT),
        duplicates=counts.of(Fate.DUPLICATE),
    ), kept
