"""The files in which the TPU compiler writes the final schedule of each fusion and each kernel."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_NAME = "LIBTPU_INIT_ARGS"
_ARGUMENTS = (
    "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
)


_folder: Path | None = None


def ask_for() -> None:
    """Has the compiler write schedules into a folder that goes with this process. Call before it is
    loaded. Where somebody has asked for them already, they are theirs, and none are counted.
    """
    global _folder
    others = os.environ.get(_NAME, "")
    if "--xla_jf_dump_to=" not in others:
        _folder = Path(tempfile.mkdtemp(prefix="bert-jax-schedules-"))
        atexit.register(shutil.rmtree, _folder, ignore_errors=True)
        os.environ[_NAME] = f"{others} {_ARGUMENTS.format(folder=_folder)}".strip()


def forget() -> None:
    """Removes the schedules of what was compiled before: names of instructions come again, and
    those of a large program are hundreds of megabytes.
    """
    for path in written():
        path.unlink()


def written() -> list[Path]:
    """Returns those of what was compiled since."""
    return [] if _folder is None else [*_folder.glob("*final_bundles.txt")]
