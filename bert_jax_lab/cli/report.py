"""Say where a run's time went, and draw the curves of one or several.

Splits the wall time of all processes that worked on a run into training, waiting for data,
compilation, evaluation, saving, starting, and work that was lost to interruptions.

examples:
  bert-jax report runs/first --html runs/first.html
  bert-jax report runs/first runs/second --html compared.html --plot compared.svg

The page is one file that needs no network: charts that can be zoomed, of one run or of several over
one another, where their time went, restarts, and the fields in which their configs differ. The
numbers are those of --json, and each chart has them as a table, too.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bert_jax.cli.options import (
    Address,
    Local,
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

# On a page.
_EXAMPLES = 8


@section
class ReportOptions(Verb):
    workdir: Positional[tuple[Address, ...]] = setting(
        REQUIRED,
        "WORKDIR: a run's directory, or gs://BUCKET/PATH; several are drawn over one another",
    )
    examples: int | None = setting(
        None,
        "N: show N held-out sentences with a hidden word, and the newest checkpoint's guesses "
        "(default: 8 on a page, none otherwise)",
    )
    json: bool = setting(
        False, "print all that the page has of a run as JSON; of several runs a list"
    )
    plot: Local | None = setting(
        None,
        "FILE: draw losses, with the corpus's unigram entropy, and time, as .png or .svg; the "
        "file says in words what it shows",
    )
    html: Local | None = setting(
        None,
        "FILE: write a page with the curves of the runs, their time, restarts, hidden words, "
        "and in what they differ",
    )


def run(options: ReportOptions) -> None:
    from bert_jax_lab.reports import curves, report_page, run_data

    if options.plot is not None and options.plot.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot {options.plot}: the name must end in .png or .svg")
    require_place_for(plot=options.plot, html=options.html)
    records = [
        curves.read(run_directory(path), name=name)
        for path, name in zip(options.workdir, _names(options.workdir), strict=True)
    ]
    number = options.examples
    if number is None:
        number = 0 if options.html is None else _EXAMPLES
    runs = [
        run_data.run_data(record, examples=_examples(path, record, number))
        for path, record in zip(options.workdir, records, strict=True)
    ]
    if options.plot is not None:
        curves.draw(records, options.plot)
    if options.html is not None:
        links = [
            _links(path, found["files"], options.html)
            for path, found in zip(options.workdir, runs, strict=True)
        ]
        write_whole(options.html, report_page.render(runs, links=links))
    if options.json:
        print(json.dumps(runs if len(runs) > 1 else runs[0]))
        return
    for path, record in zip(options.workdir, records, strict=True):
        _print(path, record.account)
    columns, rows, right = report_page.hidden_words(runs)
    if rows and options.examples:  # those that are for the page are there
        table(f"Hidden words, held out: {right}", columns, rows)
    for file in (options.plot, options.html):
        if file is not None:
            print(f"wrote {file}")


def _examples(workdir: Path | str, record: Any, number: int) -> list[Any]:
    """Returns examples of what a run of pre-training has learned; none, with a line that says why,
    where its corpus or its checkpoint cannot be read here.
    """
    if number < 1 or record.stored.get("task"):
        return []
    from bert_jax.api.model import load
    from bert_jax.data.corpus.several import open_corpora
    from bert_jax.pretrained.load import require_same_tokenizer
    from bert_jax.workdir.run_directory import corpus_of
    from bert_jax_lab.probes.hidden_words import hidden_words

    corpus = corpus_of(record.directory)
    if corpus is None:
        return []
    if "mlm" not in (record.stored.get("config") or {}).get("head", {}).get("parts", ()):
        return []
    try:
        with ticking(f"{workdir}: filling in hidden words"):
            held_out, model = open_corpora(corpus), load(workdir)
            # It may have been prepared again since.
            require_same_tokenizer(model.source, held_out)
            found = hidden_words(model.source, model.tokenizer, held_out, number=number)
        if not found:
            note(
                f"{workdir}: no hidden words are filled in: no held-out sentence of readable "
                "length has a word of letters that is one token"
            )
        return found
    except BertJaxError as error:
        note(f"{workdir}: no hidden words are filled in: {error}")
        return []


def _links(workdir: Path | str, names: list[str], page: Path) -> dict[str, str]:
    """Returns the addresses of a run's files as seen from the page; none of files in a bucket."""
    if isinstance(workdir, str):
        return {}
    base = page.resolve().parent
    return {
        name: quote(Path(os.path.relpath(workdir.resolve() / name, base)).as_posix())
        for name in names
    }


def _names(paths: Sequence[Path | str]) -> list[str]:
    """Returns the last parts of paths, with the one before where it is only "workdir"; whole paths
    where two end alike.
    """
    parts = [str(path).rstrip("/").split("/") for path in paths]
    names = ["/".join(part[-2:] if part[-1] == "workdir" else part[-1:]) for part in parts]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _print(path: Path | str, account: dict[str, Any]) -> None:
    total, starts = account["wall_seconds"], account["starts"]
    table(
        f"{path}: {starts} start{'s' * (starts != 1)}, step {account['step']:,}",
        ("", "seconds", "share"),
        [
            (
                name.replace("_", " "),
                f"{seconds:z,.1f}",
                # Without events nobody knows when it began: the rows alone are no wall time.
                f"{seconds / total:z.1%}" if total else "",
            )
            for name, seconds in [*account["seconds"].items(), ("wall", total)]
        ],
    )
    for name in ("skipped_updates", "failed_saves", "preemptions"):
        if account[name]:
            print(f"{name.replace('_', ' ')}: {account[name]}")
