"""Print a config as it would run, as JSON.

'show configs' lists the shipped configs, with a line each.
'show fields CONFIG' prints the meaning of each field, its allowed values, and whether a resumed run
accepts another value.
'show rows CONFIG --corpus DIR' prints how many rows each phase makes of a corpus, and the share of
padding, packed and not; of several corpora, the rows and epochs of each. 'show corpus DIR' prints
the table of 'prepare' again. 'show sharding CONFIG --topology NAME' lists how each parameter is
partitioned over the devices.
"""

import ast
import dataclasses
import json
import re
import textwrap
from pathlib import Path
from typing import Literal

from bert_jax.cli.corpora import Corpora, corpora
from bert_jax.cli.options import Positional, WithConfig
from bert_jax.cli.output import table
from bert_jax.config import TrainConfig, flatten, to_dict
from bert_jax.config.fields import REQUIRED, field_at, section, setting
from bert_jax.config.resume import is_saved
from bert_jax.errors import UsageError
from bert_jax.progress import note


@section
class ShowOptions(WithConfig):
    what: Positional[Literal["config", "fields", "rows", "corpus", "sharding"]] = setting(
        "config", "what to show"
    )
    config: Positional[str] = setting(
        REQUIRED,
        "CONFIG: 'configs' for the list of the [shipped "
        "configs](configuration.md#shipped-configs), or the name of one of them, a .py file "
        "that defines config(), or a run's config.json",
    )
    corpus: Corpora = setting(
        (), "DIR|NAME=DIR: for 'show rows': a directory of prepare, or several"
    )
    topology: str | None = setting(
        None, "NAME: for 'show sharding': generation and chips of a slice, as for plan"
    )
    json: bool = setting(False, "for all but 'show CONFIG': print objects instead of a table")
    slices: int | None = setting(
        None, "N: for 'show sharding': slices of that size (default: the config's `mesh.slices`)"
    )


def run(options: ShowOptions) -> None:
    from bert_jax import config_loader

    if options.config == "configs":
        return _show_configs(options)
    if options.what == "corpus":
        return _show_corpus(options)
    resolved = config_loader.load_config(options.config, options.overrides)
    shown = {"sharding": _show_sharding, "rows": _show_rows, "fields": _show_fields}
    shown.get(options.what, _show_config)(options, resolved)


def _show_configs(options: ShowOptions) -> None:
    """Prints the name of each shipped config, and the first paragraph of its file's docstring."""
    from bert_jax import config_loader

    for name in config_loader.shipped_names():
        file = config_loader.config_directory() / f"{name}.py"
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        summary = " ".join(docstring.partition("\n\n")[0].split())
        if options.json:
            print(json.dumps({"config": name, "summary": summary}))
        else:
            print(textwrap.fill(summary, 96, initial_indent=f"{name:<22}",
                                subsequent_indent=" " * 22))  # fmt: skip


def _show_corpus(options: ShowOptions) -> None:
    """Prints the table of a corpus, whose directory is in the place of the config."""
    from bert_jax.cli.training.prepare import print_corpus
    from bert_jax.data.corpus.store import open_corpus

    place = Path(options.config)
    corpus = open_corpus(place)
    if options.json:
        print(json.dumps(corpus.manifest))
    else:
        print_corpus(place, corpus.manifest)


def _show_config(options: ShowOptions, resolved: TrainConfig) -> None:
    """Prints all fields, and a note on a model that no other library reads."""
    print(json.dumps(to_dict(resolved), indent=2))
    from bert_jax.pretrained.export import export_warning

    if warning := export_warning(resolved):
        note(warning)


def _show_fields(options: ShowOptions, resolved: TrainConfig) -> None:
    """Prints value, default, allowed values and meaning of each field."""
    for path, value in flatten(resolved).items():
        found = field_at(resolved, path)
        if found is None:
            continue
        free = found.free
        resuming = "free" if free else "fixed" if is_saved(path) else "--allow-change"
        allowed, doc = found.allowed(), re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found.doc)
        if options.json:
            facts = {"field": path, "value": value, "default": to_dict(found.default)}
            print(json.dumps(facts | {"allowed": allowed, "on_resume": resuming, "meaning": doc}))
            continue
        print(
            f"{path} = {json.dumps(value)}  (on resume: {resuming}{'; ' * bool(allowed)}{allowed})"
        )
        print(textwrap.fill(doc, 96, initial_indent="    ", subsequent_indent="    "))


def _show_rows(options: ShowOptions, config: TrainConfig) -> None:
    """Prints how many rows each phase makes of a corpus per epoch, and their padding."""
    from bert_jax.data.corpus.several import open_corpora
    from bert_jax.data.pretraining.padding import padding

    if (place := corpora(options.corpus)) is None:
        raise UsageError("show rows needs --corpus DIR, a directory that prepare has made")
    corpus = open_corpora(place)
    if corpus.sources:
        from bert_jax_lab.cli.sources import print_sources, sources_of

        print_sources(config, sources_of(config, corpus), as_json=options.json)
        return
    found = [
        (
            phase,
            padding(corpus.train, options=config.in_phase(i).data, phase=phase, seed=config.seed),
        )
        for i, phase in enumerate(config.phases)
    ]
    if options.json:
        for phase, rows in found:
            print(json.dumps({"sequence_length": phase.sequence_length, **rows._asdict()}))
        return
    table(
        f"{config.name}: {config.data.rows} of {place}, per epoch",
        ("length", "rows", "padding", "packed rows", "padding"),
        [
            (
                str(phase.sequence_length),
                f"{rows.sequences:,}",
                f"{rows.unpacked:.1%}",
                f"{rows.packed_rows:,}",
                f"{rows.packed:.1%}",
            )
            for phase, rows in found
        ],
    )
    packings = dict.fromkeys(config.in_phase(i).data.packing for i in range(len(config.phases)))
    print(f"data.packing is {', then '.join(packings)}; --set data.packing=best_fit packs rows")


def _show_sharding(options: ShowOptions, config: TrainConfig) -> None:
    """Prints every parameter's name, shape, partition and MiB per device. Compiles nothing."""
    from bert_jax_lab.planning import topologies

    if options.topology is None:
        raise UsageError("show sharding needs --topology, such as --topology v3:4x8")
    slices = config.mesh.slices if options.slices is None else options.slices
    topology = topologies.parse(options.topology, slices=slices)
    from bert_jax_lab.planning.param_sharding import placements

    rows = placements(config, topology)
    if options.json:
        for row in rows:
            print(json.dumps(dataclasses.asdict(row)))
        return
    table(
        f"{config.name} on {topology.name}: {topology.devices} devices",
        ("parameter", "shape", "partitioned over", "MiB per device"),
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
    print(f"weights {whole / 2**20:,.1f} MiB per device; Adam's two moments twice as much")
