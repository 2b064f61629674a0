"""Options that several verbs have, and the types of their values."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from bert_jax.config_loader import path_or_address, shipped_names
from bert_jax.errors import StorageFailed, UsageError

ANY_MODEL = (
    "a workdir (its newest step), one step of it (DIR/checkpoints/STEP), a Hugging Face "
    "directory, or a TF1 checkpoint; a workdir may be gs://BUCKET/PATH"
)


def add_config(parser: Any) -> None:
    """Adds the positional argument CONFIG and --set."""
    parser.add_argument(
        "config",
        metavar="CONFIG",
        help=f"a shipped config ({', '.join(shipped_names())}), a .py file that defines config(), "
        "or a run's config.json",
    )
    add_overrides(
        parser,
        "change a field, such as model.hidden_size=256 or phases.0.steps=100; repeat for "
        "several. 'bert-jax show CONFIG' lists them all",
    )


def add_overrides(parser: Any, help_text: str) -> None:
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="FIELD=VALUE",
        help=help_text,
    )  # fmt: skip


def add_checkpoint(parser: Any, what: str = ANY_MODEL) -> None:
    parser.add_argument(
        "--checkpoint", type=path_or_address, required=True, metavar="DIR", help=what
    )
    if what == ANY_MODEL:
        add_ignore_unexpected(parser)


def add_ignore_unexpected(parser: Any) -> None:
    parser.add_argument(
        "--ignore-unexpected",
        action="append",
        default=[],
        metavar="PATTERN",
        help="for a model of another system: leave out the extra tensors of these names, such as "
        "'cls.extra.*'; repeat for several",
    )


def add_allow_missing_heads(parser: Any, help_text: str) -> None:
    parser.add_argument("--allow-missing-heads", action="store_true", help=help_text)


def add_processes(parser: Any) -> None:
    """Adds the options of a run over several hosts."""
    group = parser.add_argument_group(
        "several processes",
        "One run over several hosts: start the same command on each. SIGTERM to any of them makes "
        "all of them save and exit with 42.",
    )
    group.add_argument(
        "--distributed",
        action="store_true",
        help="find the other processes through Cloud TPU, GKE or Slurm",
    )
    elsewhere = "on other machines: the address at which process 0 listens"
    group.add_argument("--coordinator", metavar="HOST:PORT", help=elsewhere)
    group.add_argument(
        "--num-processes", type=int, metavar="N", help="on other machines: how many there are"
    )
    group.add_argument(
        "--process-id",
        type=int,
        metavar="I",
        help="on other machines: which one this is, from 0 to N - 1",
    )


def processes(arguments: Any) -> dict[str, Any]:
    """Returns how the processes find each other, as `runtime.start.Start` takes it."""
    return {
        "detect": arguments.distributed,
        "coordinator": arguments.coordinator,
        "num_processes": arguments.num_processes,
        "process_id": arguments.process_id,
    }


def add_json(parser: Any, help_text: str) -> None:
    parser.add_argument("--json", action="store_true", help=help_text)


def add_trackers(parser: Any) -> None:
    """Adds --tracker, which changes a field of the config."""
    parser.add_argument(
        "--tracker",
        action="append",
        default=[],
        metavar="NAME",
        help="show the curves in wandb or trackio, too (pip install 'bert-jax[wandb]'); repeat "
        "for several",
    )


def add_fit(parser: Any) -> None:
    parser.add_argument(
        "--fit",
        action="store_true",
        help="choose optimizer.gradient_accumulation_steps (microbatches) by the memory that is "
        "free, compute.remat where one row is still too much, and evaluation.batch_size; a run "
        "that goes on keeps its own",
    )


def overrides(arguments: Any) -> list[str]:
    """Returns the changes of the config, as --set and --tracker ask for them."""
    chosen = [f"trackers={json.dumps(arguments.tracker)}"] if arguments.tracker else []
    return [*arguments.overrides, *chosen]


def add_reading(parser: Any) -> None:
    """Adds the options that say how a table is written."""
    parser.add_argument(
        "--columns",
        metavar="NAMES",
        help="the columns of a table that has no first line of their names, as a,b,c",
    )
    parser.add_argument(
        "--delimiter",
        metavar="CHARACTER",
        help="what stands between the cells of a table, such as ';' or 'tab' (default: the tab of "
        "a .tsv; for a .csv the first of , tab ; | with which the first line has the columns)",
    )


def reading(arguments: Any, *, skip_bad: bool = False) -> Any:
    """Returns how a table is written, as `Sources.reading` takes it."""
    from bert_jax.data.tasks.tables import TableOptions

    delimiter = {"tab": "\t", "\\t": "\t"}.get(arguments.delimiter, arguments.delimiter)
    if delimiter is not None and len(delimiter) != 1:
        raise UsageError(f"--delimiter {arguments.delimiter}: write one character, or 'tab'")
    columns = tuple(name.strip() for name in (arguments.columns or "").split(",") if name.strip())
    return TableOptions(delimiter=delimiter, columns=columns, skip_bad=skip_bad)


def standard_input(given: Path | None) -> Path | None:
    """Returns the file that is to be read: standard input for `-`, and for nothing where text is
    piped in.
    """
    from bert_jax.data.tasks.tables import STDIN

    if given == Path("-") or (given is None and not sys.stdin.isatty()):
        return STDIN
    return given


def add_extend(parser: Any) -> None:
    parser.add_argument(
        "--extend", action="append", default=[], type=Path, metavar="FILE",
        help="execute this Python file first: it registers objectives, optimisers, tasks, ... "
        "(docs/extend.md); repeat for several",
    )  # fmt: skip


def local(text: str) -> Path:
    """Returns a path on this machine.

    Raises argparse's error for an address such as gs://BUCKET/PATH.
    """
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is an address, and this is written to a local directory; copy it there "
            "afterwards, with gcloud storage cp --recursive"
        )
    return Path(text)


def corpus_directory(text: str) -> Path:
    """Returns the directory of a corpus. Raises argparse's error for an address."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is an address, and a corpus is read from a local directory; copy it first: "
            f"gcloud storage cp --recursive {text} ."
        )
    return Path(text)


def run_directory(name: Path | str) -> Path:
    """Returns the directory of a workdir, which may be in a bucket.

    Raises UsageError if it is none.
    """
    from bert_jax.workdir import remote_workdir
    from bert_jax.workdir.run_directory import CONFIG, nearby

    directory = remote_workdir.directory_of(name)
    if not (directory / CONFIG).is_file():
        raise UsageError(f"{name} is no workdir: it has no {CONFIG}{nearby(directory)}")
    return directory


def require_place_for(**paths: Path | None) -> None:
    """Raises UsageError or StorageFailed, before any work, if a file cannot be written.

    `paths` are those of the options, by their names.
    """
    for name, path in paths.items():
        if path is None:
            continue
        option = f"--{name.replace('_', '-')} {path}"
        if path.is_dir():
            raise UsageError(f"{option} is a directory; name a file in it")
        if not path.parent.is_dir():
            raise UsageError(f"{option}: there is no directory {path.parent}; make it first")
        _require_writable(option, path.parent)


def require_place_for_directory(**paths: Path | str | None) -> None:
    """Does for directories, which are made with all that they lie in, as `require_place_for`.

    An address is left to those who ask the bucket.
    """
    for name, path in paths.items():
        if path is None or isinstance(path, str):
            continue
        option = f"--{name.replace('_', '-')} {path}"
        above = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not above.is_dir():
            which = "is a file" if above == path else f"cannot be made: {above} is a file"
            raise UsageError(f"{option} {which}; choose another directory")
        _require_writable(option, above)


def _require_writable(option: str, directory: Path) -> None:
    if not os.access(directory, os.W_OK):
        raise StorageFailed(f"{option}: nothing may be written to {directory}")
