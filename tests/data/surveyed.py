"""Sources as `prepare` looks through them, in this process."""

from collections.abc import Sequence
from pathlib import Path

from bert_jax.data.corpus.dedup import Survey
from bert_jax.data.corpus.store import SPLITS
from bert_jax.data.corpus.survey import Looked, look_through, texts_of, units_of
from bert_jax.data.sources.stream import SourceOptions


def survey(
    sources: Sequence[str],
    *,
    validation_fraction: float,
    seed: int,
    reading: SourceOptions | None = None,
) -> tuple[Survey, list[tuple[str, str]]]:
    """Returns what is decided of sources, and the text and side of each document that is kept."""
    looked = Looked(
        fraction=validation_fraction,
        salt=seed.to_bytes(8, "little"),
        folder=Path("/nowhere"),
        budget=0,
        draws=True,
        skips_files=False,
    )
    decided = Survey(sources, validation_fraction=validation_fraction)
    units = units_of([(sources, reading or SourceOptions())])
    for unit in units:
        decided.take(unit, look_through(looked, unit, None))
    for error in decided.findings.files.values():
        raise error
    kept = [
        (text.decode(), SPLITS[decision])
        for unit, order in zip(units, decided.orders(), strict=True)
        for text, decision in zip(texts_of(unit), order.decisions, strict=True)
        if decision < len(SPLITS)
    ]
    return decided, kept
