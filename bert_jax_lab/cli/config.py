"""Show configs: their fields, sequences and sharding.

'list' lists the shipped configs with one line each. 'show' prints a config as JSON, as a run would
use it. 'fields' prints the meaning and the allowed values of each field, and whether it may change
on resume. 'sequences' prints the epochs of each phase and corpus, the number of sequences per
epoch, and the padding with and without packing. 'sharding' lists how each parameter is partitioned
over devices.

examples:
  bert-jax config list
  bert-jax config show bert_base --optimizer.learning_rate 2e-4
  bert-jax config sequences bert_base --corpus runs/corpus
  bert-jax config sharding bert_large --topology v5e:8x8
"""

import ast
import collections
import json
import textwrap
from typing import Annotated, Literal

from bert_jax.cli.corpora import Corpora, corpora
from bert_jax.cli.options import SET, Positional, Verb
from bert_jax.cli.output import table, tell
from bert_jax.config import TrainConfig, leaves, to_dict
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.config.resume import is_saved
from bert_jax.errors import UsageError
from bert_jax.progress import note


@section
class ConfigOptions(Verb):
    what: Positional[Literal["list", "show", "fields", "sequences", "sharding"]] = setting(
        REQUIRED, "NOUN: what to show: list, show, fields, sequences or sharding"
    )
    config: Positional[str | None] = setting(
        None,
        "CONFIG: a shipped config, a .py file that defines config(), or the config.json of a run; "
        "not for list",
    )
    overrides: Annotated[tuple[str, ...], "--set"] = setting(
        (),
        SET,
    )
    corpus: Corpora = setting(
        (), "DIR|NAME=DIR: a directory of bert-jax prepare, or several (sequences)"
    )
    topology: str | None = setting(
        None, "NAME: generation and shape of a TPU slice, for example v5e:8x8 (sharding)"
    )
    slices: int | None = setting(
        None, "N: number of slices (sharding) (default: `mesh.slices` of the config)"
    )
    json: bool = setting(False, "print JSON objects in place of a table")


def run(options: ConfigOptions) -> None:
    from bert_jax import config_loader

    if options.what == "list":
        if options.config is not None:
            raise UsageError(f"config list takes no CONFIG: write config show {options.config}")
        return _list(options)
    if options.config is None:
        raise UsageError(
            f"config {options.what} needs a CONFIG: 'bert-jax config list' lists the shipped ones"
        )
    resolved = config_loader.load_config(options.config, options.overrides)
    by_noun = {"sharding": _sharding, "sequences": _sequences, "fields": _fields, "show": _show}
    by_noun[options.what](options, resolved)


def _list(options: ConfigOptions) -> None:
    """Prints the name of each shipped config, and the first paragraph of its file's docstring."""
    from bert_jax import config_loader

    names = config_loader.shipped_names()
    width = max(map(len, names)) + 2
    for name in names:
        file = config_loader.config_directory() / f"{name}.py"
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        summary = " ".join(docstring.partition("\n\n")[0].split())
        if options.json:
            print(json.dumps({"config": name, "summary": summary}))
        else:
            print(textwrap.fill(summary, 96, initial_indent=f"{name:<{width}}",
                                subsequent_indent=" " * width))  # fmt: skip


def _show(options: ConfigOptions, resolved: TrainConfig) -> None:
    """Prints all fields, and a note if no other library reads the model."""
    print(json.dumps(to_dict(resolved), indent=2))
    from bert_jax.pretrained.export import export_warning

    if warning := export_warning(resolved):
        note(warning)


def _fields(options: ConfigOptions, resolved: TrainConfig) -> None:
    """Prints value, default, allowed values and meaning of each field."""
    for path, value, found in leaves(resolved):
        resuming = "free" if found.free else "fixed" if is_saved(path) else "--allow-change"
        allowed, doc = found.allowed(), found.doc
        if options.json:
            facts = {"field": path, "value": value, "default": to_dict(found.default)}
            print(json.dumps(facts | {"allowed": allowed, "on_resume": resuming, "meaning": doc}))
            continue
        print(
            f"{path} = {json.dumps(value)}  (on resume: {resuming}{'; ' * bool(allowed)}{allowed})"
        )
        print(textwrap.fill(doc, 96, initial_indent="    ", subsequent_indent="    "))


def _sequences(options: ConfigOptions, config: TrainConfig) -> None:
    """Prints the rows and epochs of each phase and source, and the padding of an epoch."""
    from bert_jax.data.corpus.several import open_corpora
    from bert_jax_lab.planning.padding import source_rows

    if (place := corpora(options.corpus)) is None:
        raise UsageError("config sequences needs --corpus DIR, a directory of bert-jax prepare")
    corpus = open_corpora(place)
    found = [
        (phase, each)
        for number, phase in enumerate(config.phases)
        for each in source_rows(config, corpus, number)
    ]
    if options.json:
        for phase, each in found:
            facts = each._asdict() | each.epoch._asdict()
            del facts["epoch"]
            print(json.dumps({"sequence_length": phase.sequence_length, **facts}))
        return
    table(
        f"{config.name}: {config.data.sequence_format} of {place}; the last four are per epoch",
        ("length", "source", "share", "rows", "epochs",
         "sequences", "padding", "packed rows", "padding"),
        [
            (
                str(phase.sequence_length),
                each.name or "corpus",
                f"{each.share:.2%}",
                f"{each.rows:,}",
                f"{each.epochs:.2f}",
                f"{each.epoch.sequences:,}",
                f"{each.epoch.unpacked:.1%}",
                f"{each.epoch.packed_rows:,}",
                f"{each.epoch.packed:.1%}",
            )
            for phase, each in found
        ],
    )  # fmt: skip
    total: dict[str, float] = collections.defaultdict(float)
    for _, each in found:
        total[each.name or "corpus"] += each.epochs
    tell(f"epochs in total: {', '.join(f'{name} {n:.2f}' for name, n in total.items())}")
    packings = dict.fromkeys(config.in_phase(i).data.packing for i in range(len(config.phases)))
    print(
        f"data.packing is {', then '.join(packings)}; --set data.packing=best_fit packs sequences"
    )


def _sharding(options: ConfigOptions, config: TrainConfig) -> None:
    """Prints every parameter's name, shape, partition and MiB per device. Compiles nothing."""
    from bert_jax_lab.planning import topologies

    if options.topology is None:
        raise UsageError("config sharding needs --topology, for example --topology v5e:8x8")
    slices = config.mesh.slices if options.slices is None else options.slices
    topology = topologies.parse(options.topology, slices=slices)
    from bert_jax_lab.planning.param_sharding import placements

    rows = placements(config, topology)
    if options.json:
        for row in rows:
            print(json.dumps(row))
        return
    table(
        f"{config.name} on {topology.name}: {topology.devices} devices",
        ("parameter", "shape", "partitioned over", "MiB per device"),
        [
            (
                row["name"],
                " x ".join(map(str, row["shape"])),
                ", ".join(axis or "-" for axis in row["spec"]) or "-",
                f"{row['bytes'] / 2**20:.3f}",
            )
            for row in rows
        ],
    )
    whole = sum(row["bytes"] for row in rows)
    print(f"weights {whole / 2**20:,.1f} MiB per device; Adam's two moments twice as much")
