"""The verb `report`: where the time of runs went, and their curves."""

import json
from pathlib import Path
from typing import Any

from bert_jax.cli.options import add_json, local, run_directory
from bert_jax.cli.output import table
from bert_jax.config_loader import path_or_address
from bert_jax.errors import UsageError

SUMMARY = "say where a run's time went, and draw the curves of one or several"
DETAILS = (
    "Splits the wall time of all processes that worked on a run into training, waiting for data, "
    "compilation, evaluation, saving, starting, and work that was lost to interruptions."
)


def add_options(parser: Any) -> None:
    parser.add_argument(
        "workdir",
        type=path_or_address,
        nargs="+",
        metavar="WORKDIR",
        help="or gs://BUCKET/PATH; several are drawn in one chart",
    )
    add_json(parser, "print the account as JSON; of several runs a list")
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
        help="write a page with that chart, the last figures, and the fields in which runs differ",
    )


def run(arguments: Any) -> None:
    from bert_jax.workdir import curves

    if arguments.plot is not None and arguments.plot.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot {arguments.plot}: the name must end in .png or .svg")
    runs = [
        curves.read(run_directory(path), name=name)
        for path, name in zip(arguments.workdir, _names(arguments.workdir), strict=True)
    ]
    if arguments.plot is not None:
        curves.draw(runs, arguments.plot)
    if arguments.html is not None:
        arguments.html.write_text(curves.page(runs), encoding="utf-8")
    if arguments.json:
        accounts = [found.account for found in runs]
        print(json.dumps(accounts if len(accounts) > 1 else accounts[0], indent=2))
        return
    for path, found in zip(arguments.workdir, runs, strict=True):
        _print(path, found.account)


def _names(paths: list[Path | str]) -> list[str]:
    """Returns the last parts of paths; whole paths where two end alike."""
    names = [str(path).rstrip("/").rpartition("/")[2] for path in paths]
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
