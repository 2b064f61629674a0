"""The rows and epochs that a run would have of each of its sources, in a table."""

import json

from bert_jax.cli.output import table, tell
from bert_jax.config import TrainConfig
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.pretraining.padding import SourceRows, source_rows

_COLUMNS = ("length", "source", "share", "rows", "epochs", "rows per epoch", "padding")


def sources_of(config: TrainConfig, corpus: Corpus) -> list[list[SourceRows]]:
    """Returns the sources of each phase. Reads the whole corpus."""
    return [source_rows(config, corpus, number) for number in range(len(config.phases))]


def objects(config: TrainConfig, phases: list[list[SourceRows]]) -> list[dict[str, object]]:
    """Returns an object for each phase and source."""
    found = []
    for number, sources in enumerate(phases):
        is_packed = config.in_phase(number).data.packing != "none"
        for each in sources:
            epoch = each.epoch
            found.append(
                {
                    "phase": number,
                    "sequence_length": config.phases[number].sequence_length,
                    "source": each.name,
                    "share": each.share,
                    "rows": each.rows,
                    "epochs": each.epochs,
                    "rows_per_epoch": epoch.packed_rows if is_packed else epoch.sequences,
                    "padding": epoch.packed if is_packed else epoch.unpacked,
                }
            )
    return found


def print_sources(
    config: TrainConfig, phases: list[list[SourceRows]], *, as_json: bool = False
) -> None:
    """Prints a line for each phase and source, and the epochs of the whole run."""
    found = objects(config, phases)
    if as_json:
        for each in found:
            print(json.dumps(each))
        return
    rows = [
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
    ]
    table(f"{config.name}: {config.data.sequence_format} of each source", _COLUMNS, rows)
    if len(phases) > 1 and len(phases[0]) > 1:
        whole = (
            f"{sources[0].name} {sum(each.epochs for each in sources):.2f}"
            for sources in zip(*phases, strict=True)
        )
        tell(f"epochs in total: {', '.join(whole)}")
