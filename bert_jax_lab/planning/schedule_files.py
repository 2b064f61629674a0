"""The files in which the TPU compiler writes the final schedule of each fusion and each kernel."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from bert_jax.errors import UsageError

_NAME = "LIBTPU_INIT_ARGS"
_ARGUMENTS = (
    "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
)

_folder: Path | None = None


def request() -> None:
    """Makes the compiler write schedules into a folder that is removed when this process ends. Call
    it before the compiler is loaded.

    Raises UsageError if LIBTPU_INIT_ARGS already names a folder.
    """
    global _folder
    others = os.environ.get(_NAME, "")
    if _folder is not None:
        return
    if "--xla_jf_dump_to=" in others:
        raise UsageError(f"{_NAME} has --xla_jf_dump_to, which a plan sets itself; remove it")
    _folder = Path(tempfile.mkdtemp(prefix="bert-jax-schedules-"))
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    os.environ[_NAME] = f"{others} {_ARGUMENTS.format(folder=_folder)}".strip()


def forget() -> None:
    """Removes the schedules of earlier programs: names of instructions repeat, and the files of a
    large program take hundreds of megabytes.
    """
    for path in written():
        path.unlink()


def written() -> list[Path]:
    """Returns the files written since the last call of `forget`."""
    return [] if _folder is None else [*_folder.glob("*final_bundles.txt")]
