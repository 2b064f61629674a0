"""The rows and epochs that a run would have of each of its sources, in a table."""

import json

from bert_jax.cli.output import table, tell
from bert_jax.config import TrainConfig
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.pretraining.padding import SourceRows, source_rows

_COLUMNS = ("length", "source", "share", "rows", "epochs", "rows an epoch", "padding")


def sources_of(config: TrainConfig, corpus: Corpus) -> list[list[SourceRows]]:
    """Returns for each phase what it has of each source. Goes over all of the corpus."""
    return [source_rows(config, corpus, number) for number in range(len(config.phases))]


def objects(config: TrainConfig, phases: list[list[SourceRows]]) -> list[dict[str, object]]:
    """Returns an object for each phase and source."""
    return [
        {
            "phase": number,
            "sequence_length": config.phases[number].sequence_length,
            "source": each.name,
            "share": each.share,
            "rows": each.rows,
            "epochs": each.epochs,
            "rows_per_epoch": _an_epoch(config, number, each)[0],
            "padding": _an_epoch(config, number, each)[1],
        }
        for number, sources in enumerate(phases)
        for each in sources
    ]


def print_sources(
    config: TrainConfig, phases: list[list[SourceRows]], *, as_json: bool = False
) -> None:
    """Prints a line for each phase and source, and the epochs of the whole run."""
    found = objects(config, phases)
    if as_json:
        for each in found:
            print(json.dumps(each))
        return
    table(
        f"{config.name}: {config.data.rows} of each source",
        _COLUMNS,
        [
            (
                str(each["sequence_length"]),
                str(each["source"] or "corpus"),
                f"{each['share']:.2%}",
                f"{each['rows']:,}",
                f"{each['epochs']:.2f}",
                f"{each['rows_per_epoch']:,}",
                f"{each['padding']:.1%}",
            )
            for each in found
        ],
    )
    if len(phases) > 1 and len(phases[0]) > 1:
        whole = (
            f"{sources[0].name} {sum(each.epochs for each in sources):.2f}"
            for sources in zip(*phases, strict=True)
        )
        tell(f"epochs in all: {', '.join(whole)}")


def _an_epoch(config: TrainConfig, number: int, source: SourceRows) -> tuple[int, float]:
    """Returns the rows of one epoch of a source, and the share of padding in them."""
    if config.in_phase(number).data.packing == "none":
        return source.epoch.sequences, source.epoch.unpacked
    return source.epoch.packed_rows, source.epoch.packed
