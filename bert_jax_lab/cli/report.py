"""Show the curves and the time of one run or several.

Splits the wall time of all processes of a run into training, waiting for data, compilation,
evaluation, saving, starting, and work that was lost to interruptions.

examples:
  bert-jax report runs/first --html runs/first.html
  bert-jax report runs/first runs/second --html compared.html

The HTML page is one file that needs no network. It has charts with zoom, the parts of the time,
restarts, and the fields in which the configs of several runs differ. --json prints the same
numbers, and each chart has a table.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.cli.options import (
    Address,
    Positional,
    Verb,
    require_place_for,
    run_directory,
)
from bert_jax.cli.output import table
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import BertJaxError, UsageError
from bert_jax.files import write_whole
from bert_jax.progress import note, ticking

# Examples on a page.
_EXAMPLES = 8


@section
class ReportOptions(Verb):
    workdir: Positional[tuple[Address, ...]] = setting(
        REQUIRED,
        "WORKDIR: directory of a run, or gs://BUCKET/PATH; several runs share the charts",
    )
    json: bool = setting(
        False,
        "print all values of the page as JSON, the masked words only with --html; for several runs "
        "a list",
    )
    html: Path | None = setting(
        None,
        "FILE: HTML page to write with curves, time, restarts, masked tokens and differences",
    )


def run(options: ReportOptions) -> None:
    from bert_jax_lab.reports import report_page, run_data

    require_place_for(html=options.html)
    runs = []
    for path, name in zip(options.workdir, _names(options.workdir), strict=True):
        directory = run_directory(path)
        runs.append(run_data.read(directory, name=name))
        if options.html is not None and not runs[-1]["task"]:
            runs[-1]["examples"] = _examples(path, directory)
    if options.html is not None:
        write_whole(options.html, report_page.render(runs))
    if options.json:
        print(json.dumps(runs if len(runs) > 1 else runs[0]))
        return
    for path, found in zip(options.workdir, runs, strict=True):
        _print(path, found)
    if options.html is not None:
        print(f"wrote {options.html}")


def _examples(workdir: Path | str, directory: Path) -> list[dict[str, Any]]:
    """Returns examples of what a run of pre-training has learned; none, with a note, if its corpus
    or its checkpoint cannot be read here.
    """
    from bert_jax.api.model import load
    from bert_jax.data.corpus.several import open_corpora
    from bert_jax.pretrained.load import require_same_tokenizer
    from bert_jax.workdir.run_directory import corpus_of
    from bert_jax_lab.probes.hidden_words import hidden_words

    if (corpus := corpus_of(directory)) is None:
        return []
    try:
        with ticking(f"{workdir}: filling in hidden words"):
            held_out, model = open_corpora(corpus), load(workdir)
            # The corpus may have been prepared again since.
            require_same_tokenizer(model.source, held_out)
            found = hidden_words(model.source, model.tokenizer, held_out, number=_EXAMPLES)
        if not found:
            raise UsageError("no held-out sentence of readable length has a word that is one token")
    except BertJaxError as error:
        note(f"{workdir}: no hidden words are filled in: {error}")
        return []
    return found


def _names(paths: Sequence[Path | str]) -> list[str]:
    """Returns the last parts of paths, with the part before "workdir"; whole paths if two runs have
    the same last parts.
    """
    parts = [str(path).rstrip("/").split("/") for path in paths]
    names = ["/".join(part[-2:] if part[-1] == "workdir" else part[-1:]) for part in parts]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _print(path: Path | str, found: dict[str, Any]) -> None:
    total, starts = found["wall_seconds"], found["starts"]
    table(
        f"{path}: {starts} start{'s' * (starts != 1)}, step {found['step']:,}",
        ("", "seconds", "share"),
        [
            (
                name.replace("_", " "),
                f"{seconds:z,.1f}",
                # Without events the start is not known: rows have no wall time.
                f"{seconds / total:z.1%}" if total else "",
            )
            for name, seconds in [*found["seconds"].items(), ("wall", total)]
        ],
    )
    for name in ("skipped_updates", "failed_saves", "preemptions"):
        if found[name]:
            print(f"{name.replace('_', ' ')}: {found[name]}")
