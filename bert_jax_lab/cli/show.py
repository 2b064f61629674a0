"""The verb `show`: a config as it would run, its rows of a corpus, its parameters on devices."""

import dataclasses
import json
from typing import Any

from bert_jax.cli.options import add_config, add_json, corpus_directory
from bert_jax.cli.output import table
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax_lab.cli.plan import TOPOLOGY

SUMMARY = "print a config as it would run, as JSON"
DETAILS = (
    "'show rows CONFIG --corpus DIR' says how many rows each phase makes of a corpus, and how much "
    "of them is padding, packed and not. 'show sharding CONFIG --topology NAME' lists how each "
    "parameter lies on its devices."
)


def add_options(parser: Any) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=("config", "rows", "sharding"),
        default="config",
        help="what to show (default: %(default)s)",
    )
    add_config(parser)
    parser.add_argument(
        "--corpus",
        type=corpus_directory,
        metavar="DIR",
        help="for 'show rows': a directory of prepare",
    )
    parser.add_argument("--topology", metavar="NAME", help=f"for 'show sharding': {TOPOLOGY}")
    add_json(parser, "for 'show rows' and 'show sharding': print objects instead of a table")
    parser.add_argument(
        "--slices", type=int, metavar="N", help="for 'show sharding': slices of that size"
    )


def run(arguments: Any) -> None:
    from bert_jax import config, config_loader

    if arguments.what == "sharding":
        _show_sharding(arguments)
        return
    if arguments.what == "rows":
        _show_rows(arguments)
        return
    resolved = config_loader.load_config(arguments.config, arguments.overrides)
    print(json.dumps(config.to_dict(resolved), indent=2))
    from bert_jax.pretrained.import_export import export_warning

    if said := export_warning(resolved):
        note(said)


def _show_rows(arguments: Any) -> None:
    """Prints what the phases' rows of a corpus hold, over an epoch."""
    from bert_jax import config_loader
    from bert_jax.data.corpus.store import open_corpus
    from bert_jax.data.pretraining.padding import padding

    config = config_loader.load_config(arguments.config, arguments.overrides)
    if arguments.corpus is None:
        raise UsageError("show rows needs --corpus DIR, a directory that prepare has made")
    split = open_corpus(arguments.corpus).train
    found = [
        (phase, padding(split, options=config.data, phase=phase, seed=config.seed))
        for phase in config.phases
    ]
    if arguments.json:
        for phase, rows in found:
            print(json.dumps({"sequence_length": phase.sequence_length, **rows._asdict()}))
        return
    table(
        f"{config.name}: {config.data.rows} of {arguments.corpus}, an epoch",
        ("length", "rows", "padding", "packed rows", "padding"),
        [
            (
                str(phase.sequence_length),
                f"{rows.sequences:,}",
                f"{rows.alone:.1%}",
                f"{rows.packed_rows:,}",
                f"{rows.packed:.1%}",
            )
            for phase, rows in found
        ],
    )
    if config.data.packing == "none":
        print("each sequence has a row of its own; --set data.packing=best_fit packs them")
    else:
        print(f"rows are packed: data.packing is {config.data.packing}")


def _show_sharding(arguments: Any) -> None:
    """Prints every parameter's name, shape, stored partition and MiB a device. Compiles nothing."""
    from bert_jax import config_loader
    from bert_jax_lab.planning import topologies

    config = config_loader.load_config(arguments.config, arguments.overrides)
    if arguments.topology is None:
        raise UsageError("show sharding needs --topology, such as --topology v3:4x8")
    topology = topologies.parse(arguments.topology, slices=arguments.slices or config.mesh.slices)
    from bert_jax_lab.planning.param_sharding import placements

    rows = placements(config, topology)
    if arguments.json:
        for row in rows:
            print(json.dumps(dataclasses.asdict(row)))
        return
    table(
        f"{config.name} on {topology.name}: {topology.devices} devices",
        ("parameter", "shape", "stored over", "MiB a device"),
        [
            (
                row.name,
                " x ".join(map(str, row.shape)),
                ", ".join(axis or "-" for axis in row.spec) or "-",
                f"{row.bytes / 2**20:.3f}",
            )
            for row in rows
        ],
    )
    whole = sum(row.bytes for row in rows)
    print(f"weights {whole / 2**20:,.1f} MiB a device; Adam's two moments twice that")
