"""Saves and resumes in a bucket with faults, in a separate process:

    python -m tests.chaos.in_bucket '[["matrix", ["list", "media"]], ["manifests"]]'

Prints one line of JSON per function. Waits are about twenty times shorter than in use.
"""

import asyncio
import functools
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_jax.config import CheckpointConfig
from bert_jax.errors import BertJaxError
from bert_jax.runtime import network
from bert_jax.workdir import checkpoint, location, manifest, metrics_log, recovery, storage
from bert_jax.workdir.checkpoint import Checkpoints
from tests.batches import mesh_of
from tests.faulty_bucket import control
from tests.workdir.test_checkpoint import _CONFIG, numbers

_ADDRESS = os.environ["STORAGE_EMULATOR_HOST"]
_HOW = (503, "stall", "drop")
_EVER = 10**6


def hasten() -> None:
    from gcsfs import retry

    assert retry.asyncio is asyncio
    retry.asyncio = types.SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 20))
    storage._READ_SECONDS = 0.5
    network.PATIENCE, network._FIRST_PAUSE = 0.5, 0.1


def saved(directory: Path, *steps: int) -> dict[str, int]:
    """Saves these steps; returns the number of requests of each kind."""
    control(_ADDRESS)
    saving = Checkpoints(
        directory,
        CheckpointConfig(keep_last=2),
        on_saved=lambda step, _: metrics_log.append_event(directory, "save", step=step),
    )
    for step in steps:
        location.at(directory).sync(patience=0)
        saving.save(numbers(_CONFIG, step=step).to_mesh(mesh_of(1)), step=step)
    saving.close()
    return control(_ADDRESS)


def outcome(call: Callable[[], Any]) -> Any:
    """Returns the exit code that an error would have, or what the call returns."""
    try:
        return ["returned", call()]
    except BertJaxError as error:
        return ["raised", error.exit_code]


def home(name: str) -> Path:
    directory = location.opened(f"gs://bucket/{name}").path
    (directory / "config.json").write_text("{}")
    return directory


def there(directory: Path) -> list:
    root = location.at(directory).checkpoints
    aside = root.parent / checkpoint.SET_ASIDE
    return [checkpoint.steps(directory), aside.is_dir()]


def matrix(kinds: list[str]) -> list:
    """Returns the outcomes of brief and lasting faults for each kind of request and fault."""
    name = f"matrix-{kinds[0]}"
    directory, step, found = home(name), 3, []
    saved(directory, 1, 2, 3)
    for kind in kinds:
        for how in _HOW:
            before = there(directory)
            control(_ADDRESS, faults={kind: [how, _EVER]})
            (directory / "result.json").write_text(f"{kind} {how}")  # a file to upload
            lasting = {
                "resume": outcome(lambda: recovery.prepare_resume(directory)),
                "read": outcome(lambda: recovery.newest_good_step(directory)),
                "take": outcome(lambda: str(location.opened(f"gs://bucket/{name}").path)),
                "copy": outcome(lambda: location.at(directory).sync()),
            }
            failed = control(_ADDRESS, faults={}).get(f"{kind} failed", 0)
            after = [there(directory), recovery.prepare_resume(directory)]
            # A brief fault: a save, and the step to resume from.
            step += 1
            control(_ADDRESS, faults={kind: [how, 2]})
            brief = outcome(functools.partial(saved, directory, step))[0]
            control(_ADDRESS, faults={})
            resumed = recovery.prepare_resume(directory)
            found.append({"kind": kind, "how": how, "lasting": lasting, "failed": failed,
                          "before": before, "after": after, "brief": brief, "step": step,
                          "resumed": resumed})  # fmt: skip
    return found


def manifests() -> dict:
    """Returns the requests of a save, and the problems found in changed objects."""
    directory = home("manifests")
    asked = saved(directory, 1, 2)
    root = location.at(directory).checkpoints
    entries = manifest.read(root / "2")["files"]
    control(_ADDRESS)
    good = checkpoint.problem(directory, 2)
    compared = control(_ADDRESS)
    largest = max(entries, key=lambda name: entries[name]["size"])
    content = (root / "2" / largest).read_bytes()
    (root / "2" / largest).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    flipped = checkpoint.problem(directory, 2)
    (root / "2" / largest).unlink()
    gone = checkpoint.problem(directory, 2)
    # A copy on a disk is compared with the same manifest.
    here = Path(os.environ["TMPDIR"]) / "copy" / "checkpoints" / "1"
    storage.copy_tree(root / "1", here)
    copied = checkpoint.problem(here.parent.parent, 1)
    largest = max(here.rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1] + b"!")
    return {"asked": asked, "entries": entries, "good": good, "compared": compared,
            "flipped": flipped, "gone": gone, "copied": copied,
            "copy_damaged": checkpoint.problem(here.parent.parent, 1)}  # fmt: skip


if __name__ == "__main__":
    hasten()
    for name, *arguments in json.loads(sys.argv[1]):
        print(json.dumps(globals()[name](*arguments)), flush=True)
    os._exit(0)  # threads of tensorstore may still wait
