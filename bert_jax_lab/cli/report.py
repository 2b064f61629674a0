"""The verb `report`: where the time of runs went, and their curves."""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bert_jax.cli.options import add_json, local, require_place_for, run_directory
from bert_jax.cli.output import table
from bert_jax.config_loader import path_or_address
from bert_jax.errors import BertJaxError, UsageError
from bert_jax.progress import note, ticking

SUMMARY = "say where a run's time went, and draw the curves of one or several"
DETAILS = (
    "Splits the wall time of all processes that worked on a run into training, waiting for data, "
    "compilation, evaluation, saving, starting, and work that was lost to interruptions."
)
EXAMPLE = """\
examples:
  bert-jax report runs/first --html runs/first.html
  bert-jax report runs/first runs/second --html compared.html --plot compared.svg

The page is one file that needs no network: charts that can be zoomed, of one run or of several over
one another, where their time went, restarts, and the fields in which their configs differ. The
numbers are those of --json, and each chart has them as a table, too.
"""

# On a page.
_EXAMPLES = 8


def add_options(parser: Any) -> None:
    parser.add_argument(
        "workdir",
        type=path_or_address,
        nargs="+",
        metavar="WORKDIR",
        help="a run's directory, or gs://BUCKET/PATH; several are drawn over one another",
    )
    parser.add_argument(
        "--examples",
        type=int,
        metavar="N",
        help="show N held-out sentences with a hidden word, and the newest checkpoint's guesses "
        "(default: 8 on a page, none otherwise)",
    )
    add_json(parser, "print all that the page has of a run as JSON; of several runs a list")
    parser.add_argument(
        "--plot",
        type=local,
        metavar="FILE",
        help="draw losses, with the corpus's unigram entropy, and time, as .png or .svg",
    )
    parser.add_argument(
        "--html",
        type=local,
        metavar="FILE",
        help="write a page with the curves of the runs, their time, and in what they differ",
    )


def run(arguments: Any) -> None:
    from bert_jax_lab.reports import curves, report_page, run_data

    if arguments.plot is not None and arguments.plot.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot {arguments.plot}: the name must end in .png or .svg")
    require_place_for(plot=arguments.plot, html=arguments.html)
    records = [
        curves.read(run_directory(path), name=name)
        for path, name in zip(arguments.workdir, _names(arguments.workdir), strict=True)
    ]
    number = arguments.examples
    if number is None:
        number = 0 if arguments.html is None else _EXAMPLES
    runs = [
        run_data.run_data(record, examples=_examples(path, record, number))
        for path, record in zip(arguments.workdir, records, strict=True)
    ]
    if arguments.plot is not None:
        curves.draw(records, arguments.plot)
    if arguments.html is not None:
        links = [
            _links(path, found["files"], arguments.html)
            for path, found in zip(arguments.workdir, runs, strict=True)
        ]
        arguments.html.write_text(report_page.render(runs, links=links), encoding="utf-8")
    if arguments.json:
        print(json.dumps(runs if len(runs) > 1 else runs[0]))
        return
    for path, record in zip(arguments.workdir, records, strict=True):
        _print(path, record.account)
    for file in (arguments.plot, arguments.html):
        if file is not None:
            print(f"wrote {file}")


def _examples(workdir: Path | str, record: Any, number: int) -> list[Any]:
    """Returns examples of what a run of pre-training has learned; none, with a line that says why,
    where its corpus or its checkpoint cannot be read here.
    """
    if number < 1 or record.stored.get("task"):
        return []
    from bert_jax.api.model import load
    from bert_jax.data.corpus.store import open_corpus
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
            held_out, model = open_corpus(corpus), load(workdir)
            # It may have been prepared again since.
            require_same_tokenizer(model.source, held_out)
            return hidden_words(model.source, model.tokenizer, held_out, number=number)
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


def _names(paths: list[Path | str]) -> list[str]:
    """Returns the last parts of paths, with the one before where it is only "workdir"; whole paths
    where two end alike.
    """
    parts = [str(path).rstrip("/").split("/") for path in paths]
    names = ["/".join(part[-2:] if part[-1] == "workdir" else part[-1:]) for part in parts]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _print(path: Path | str, account: dict[str, Any]) -> None:
    total = account["wall_seconds"]
    table(
        f"{path}: {account['starts']} starts, step {account['step']:,}",
        ("", "seconds", "share"),
        [
            (name.replace("_", " "), f"{seconds:,.1f}", f"{seconds / max(total, 1e-9):.1%}")
            for name, seconds in [*account["seconds"].items(), ("wall", total)]
        ],
    )
    for name in ("skipped_updates", "failed_saves", "preemptions"):
        if account[name]:
            print(f"{name.replace('_', ' ')}: {account[name]}")
