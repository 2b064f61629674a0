"""Runs `bert-jax` with a fault:

    python -m tests.chaos.faulty FAULT=VALUE ... -- pretrain CONFIG ...

| fault | effect |
|---|---|
| `nan=5,9` | the prediction weights in the batches of these steps are NaN |
| `omit=5,9` | these steps make no update, which is the expected effect of `nan` |
| `loader=5:60` | the loader sleeps 60 s at step 5 |
| `gil=5:60` | the loader holds the interpreter's lock for 60 s at step 5 |
| `held=9:FILE` | the loader waits at step 9 until the file is removed |
| `step=0.05` | every batch takes 0.05 s longer |
| `task-step=0.05` | every batch of fine-tuning takes 0.05 s longer |
| `fails=4:9` | the loader raises the error of code 4 at step 9 (also: `os`, `uncaught`, `kill`) |
| `unopened=4` | opening the corpus raises the error of exit code 4 |
| `save=60` | a save waits 60 s between its commit and its manifest |
| `heartbeat=20` | a lost process is noticed after 20 s instead of 100 s |
| `barrier=60` | the process reaches each barrier 60 s late |
| `failing-saves=2` | the first two saves fail: no space |
| `late-failure=2` | the second save fails in the background: no space |
| `commit-files=1` | Orbax writes steps in place with a commit file, as in a bucket |
| `at=MODULE:NAME:2` | the function prints a line on stderr and takes 2 s longer |
| `terminal=0` | the terminal of descriptor 0 becomes the controlling terminal |
| `killed=MODULE:NAME:3` | SIGKILL after the third call of the function |
| `stale=2` | a lock in a bucket expires 2 s after its last renewal |
| `rows=FILE` | no fault: the file gets the SHA-256 of each row that this process made, by step |
| `say=evaluate` | a line on stderr when an evaluation begins (also: import, numpy, compile) |
"""

import builtins
import ctypes
import errno
import hashlib
import importlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_jax.__main__ import console


def _say(what: str) -> None:
    sys.stderr.write(f"chaos: {what}\n")
    sys.stderr.flush()


def _around_batches(change: Callable[[int, dict], dict]) -> None:
    from bert_jax.training import device_feed

    make = device_feed.host_batch

    def host_batch(batch_at: Any, step: int, ranges: Any) -> dict:
        # Batches of an evaluation are left alone.
        batch = make(batch_at, step, ranges)
        is_training = getattr(batch_at, "__self__", None).__class__.__name__ == "Pipeline"
        return change(int(step), batch) if is_training else batch

    device_feed.host_batch = host_batch


def _at_step(value: str, act: Callable[[float], Any]) -> None:
    at, seconds = value.split(":")

    def change(step: int, batch: dict) -> dict:
        if step == int(at):
            _say(f"step {step} is delayed")
            act(float(seconds))
        return batch

    _around_batches(change)


def nan(value: str) -> None:
    steps = {int(step) for step in value.split(",")}

    def change(step: int, batch: dict) -> dict:
        if step + 1 in steps:
            batch["mlm_weights"] = batch["mlm_weights"] * float("nan")
        return batch

    _around_batches(change)


def omit(value: str) -> None:
    import dataclasses

    import jax

    from bert_jax.training import compiled_steps

    steps, compile_lowered = (
        {int(step) for step in value.split(",")},
        compiled_steps.compile_lowered,
    )

    def omitting(lowered: Any) -> Any:
        train = compile_lowered(lowered)

        def step(state: Any, batch: dict) -> Any:
            if int(state.step) + 1 not in steps:
                return train(state, batch)
            _, metrics = train(jax.tree.map(lambda x: x.copy(), state), batch)
            return dataclasses.replace(state, step=state.step + 1), metrics

        step.memory_analysis = train.memory_analysis
        return step

    compiled_steps.compile_lowered = omitting


def loader(value: str) -> None:
    _at_step(value, time.sleep)


def held(value: str) -> None:
    at, file = value.split(":")

    def change(step: int, batch: dict) -> dict:
        while step >= int(at) and os.path.exists(file):
            time.sleep(0.05)
        return batch

    _around_batches(change)


def gil(value: str) -> None:
    # PyDLL calls the C function without releasing the lock.
    _at_step(value, lambda seconds: ctypes.PyDLL(None).sleep(int(seconds)))


def _error(kind: str) -> Exception:
    from bert_jax import errors

    if kind == "os":
        return OSError(errno.EIO, "Input/output error", "shard")
    return RuntimeError("uncaught") if kind == "uncaught" else errors.with_exit_code(int(kind), "!")


def fails(value: str) -> None:
    kind, at = value.split(":")

    def change(step: int, batch: dict) -> dict:
        if step >= int(at):
            _say(f"fails at {step}")
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise _error(kind)
        return batch

    _around_batches(change)


def unopened(value: str) -> None:
    from bert_jax.training import pretrain

    def refuse(*_: Any, **__: Any) -> Any:
        _say("fails")
        raise _error(value)

    assert hasattr(pretrain, "open_corpora")
    pretrain.open_corpora = refuse


def step(value: str) -> None:
    def change(_: int, batch: dict) -> dict:
        time.sleep(float(value))
        return batch

    _around_batches(change)


def task_step(value: str) -> None:
    from bert_jax.tasks import finetune

    make = finetune.FineTuning.batches

    def slow(self: Any, phase: int, start: int, stop: int) -> Any:
        for batch in make(self, phase, start, stop):
            time.sleep(float(value))
            yield batch

    finetune.FineTuning.batches = slow


def _around(place: str, name: str, act: Callable[[Callable[[], Any]], Any]) -> None:
    """Replaces MODULE:NAME by a function that gives the original call to `act`."""
    owner: Any = importlib.import_module(place)
    *inside, name = name.split(".")
    for part in inside:
        owner = getattr(owner, part)
    original = getattr(owner, name)

    def replacement(*arguments: Any, **options: Any) -> Any:
        return act(lambda: original(*arguments, **options))

    setattr(owner, name, replacement)


def _late(text: str, seconds: str) -> Callable[[Callable[[], Any]], Any]:
    def act(call: Callable[[], Any]) -> Any:
        _say(text)
        time.sleep(float(seconds))
        return call()

    return act


def save(value: str) -> None:
    _around("bert_jax.workdir.manifest", "write", _late("saving", value))


def barrier(value: str) -> None:
    _around("bert_jax.runtime.distributed", "barrier", _late("barrier", value))


def failing_saves(value: str) -> None:
    from orbax.checkpoint import v1 as ocp

    save_async, left = ocp.save_async, [int(value)]

    def failing(path: str, state: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return save_async(path, state, **options)

    ocp.save_async = failing


def late_failure(value: str) -> None:
    from orbax.checkpoint import v1 as ocp

    class Failing:
        def result(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    save_async, number = ocp.save_async, itertools.count(1)

    def counted(*arguments: Any, **options: Any) -> Any:
        if next(number) == int(value):
            return Failing()
        return save_async(*arguments, **options)

    ocp.save_async = counted


def commit_files(_: str) -> None:
    from orbax.checkpoint._src.path import atomicity, atomicity_defaults

    def in_place(*_: Any, **__: Any) -> Any:
        return atomicity.CommitFileTemporaryPath

    for name in ("get_default_temporary_path_class", "get_item_default_temporary_path_class"):
        assert hasattr(atomicity_defaults, name)
        setattr(atomicity_defaults, name, in_place)


def heartbeat(value: str) -> None:
    from bert_jax.runtime import distributed

    assert hasattr(distributed, "_HEARTBEAT_TIMEOUT")
    distributed._HEARTBEAT_TIMEOUT = int(value)


def terminal(value: str) -> None:
    # The first terminal that a session leader opens becomes its controlling terminal.
    os.close(os.open(os.ttyname(int(value)), os.O_RDWR))


def at(value: str) -> None:
    place, name, seconds = value.split(":")
    _around(place, name, _late("at", seconds))


def killed(value: str) -> None:
    place, name, number = value.split(":")
    calls = itertools.count(1)

    def act(call: Callable[[], Any]) -> Any:
        found = call()
        if next(calls) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    _around(place, name, act)


def stale(value: str) -> None:
    from bert_jax.workdir import lock

    lock.SECONDS, lock._RENEWAL_SECONDS = float(value), float(value) / 4


def rows(value: str, patch: Callable[..., None] = setattr) -> None:
    from bert_jax.training import device_feed

    make, seen = device_feed.host_batch, dict[int, dict[int, str]]()

    def host_batch(batch_at: Any, step: int, ranges: Any) -> dict:
        batch = make(batch_at, step, ranges)
        for place, number in enumerate(row for rows in ranges for row in rows):
            content = b"".join(batch[name][place].tobytes() for name in sorted(batch))
            seen.setdefault(int(step), {})[number] = hashlib.sha256(content).hexdigest()
        Path(value).write_text(json.dumps(seen))
        return batch

    patch(device_feed, "host_batch", host_batch)


def say(value: str) -> None:
    if value in ("import", "numpy"):
        importing = builtins.__import__

        def watched(name: str, *rest: Any, **named: Any) -> Any:
            if name == ("jax" if value == "import" else value):
                builtins.__import__ = importing
                _say("import")
            return importing(name, *rest, **named)

        builtins.__import__ = watched
        return
    place, name = {
        "evaluate": ("bert_jax.training.evaluate", "HeldOut.run"),
        "compile": ("bert_jax.training.compiled_steps", "compile_lowered"),
    }[value]
    _around(place, name, _late(value, "0"))


if __name__ == "__main__":
    # Background processes of a shell ignore SIGINT; processes under nohup ignore SIGHUP.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    split = sys.argv.index("--")
    for fault in sys.argv[1:split]:
        kind, _, argument = fault.partition("=")
        globals()[kind.replace("-", "_")](argument)
    sys.argv[1:] = sys.argv[split + 1 :]
    console()
