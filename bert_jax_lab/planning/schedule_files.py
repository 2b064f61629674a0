"""The files in which the TPU compiler writes the final schedule of each fusion and each kernel."""

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = "LIBTPU_INIT_ARGS"
_ARGUMENTS = (
    "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
)


def ask_for() -> None:
    """Has the compiler write schedules into a folder that goes with this process. Call before it is
    loaded; where somebody else asks for them, theirs is used.
    """
    if _folder() is None:
        folder = tempfile.mkdtemp(prefix="bert-jax-schedules-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        others = os.environ.get(_NAME, "")
        os.environ[_NAME] = f"{others} {_ARGUMENTS.format(folder=folder)}".strip()


def forget() -> None:
    """Removes the schedules of what was compiled before: names of instructions come again."""
    for path in written():
        path.unlink()


def written() -> list[Path]:
    """Returns those of what was compiled since."""
    folder = _folder()
    return [] if folder is None else [*folder.glob("*final_bundles.txt")]


def _folder() -> Path | None:
    match = re.search(r"--xla_jf_dump_to=(\S+)", os.environ.get(_NAME, ""))
    return Path(match[1]) if match else None
