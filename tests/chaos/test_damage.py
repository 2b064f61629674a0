"""Damage of every kind to every file of a checkpoint: found before a step is trained on it."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_jax.workdir import checkpoint, recovery
from tests.chaos import IS_LONG
from tests.chaos.runs import STEPS, Started, losses

pytestmark = pytest.mark.chaos

_FAULTS = 300 if IS_LONG else 60


def _flip(file: Path, other: Path, draw: random.Random) -> None:
    data = bytearray(file.read_bytes())
    place = draw.randrange(len(data))
    data[place] ^= 1 << draw.randrange(8)
    file.write_bytes(data)


def _truncate(file: Path, other: Path, draw: random.Random) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: draw.randrange(len(data))])


def _delete(file: Path, other: Path, draw: random.Random) -> None:
    file.unlink()


def _zero(file: Path, other: Path, draw: random.Random) -> None:
    data = bytearray(file.read_bytes())
    place = draw.choice([i for i, byte in enumerate(data) if byte])
    data[place : place + 512] = bytes(len(data[place : place + 512]))
    file.write_bytes(data)


def _swap(file: Path, other: Path, draw: random.Random) -> None:
    """With the file of the same kind in another step: well-formed, and not of this one."""
    one, two = file.read_bytes(), other.read_bytes()
    file.write_bytes(two)
    other.write_bytes(one)


_KINDS: list[Callable[[Path, Path, random.Random], None]] = [
    _flip,
    _truncate,
    _delete,
    _zero,
    _swap,
]


def _files(step: Path) -> list[Path]:
    """In an order that means the same in every step: Orbax names data files at random."""
    found = [p for p in step.rglob("*") if p.is_file() and p.stat().st_size]
    return sorted(found, key=lambda p: (str(p.parent), p.stat().st_size))


def test_damage_is_found_and_passed_over(tmp_path, finished, capsys):
    """Every kind over every file, the manifest included; the step before is what remains."""
    newest, before = sorted(checkpoint.steps(finished))[::-1]
    draw, found, number = random.Random(0), 0, 0
    while number < _FAULTS:
        workdir = tmp_path / "damaged"
        shutil.copytree(finished, workdir)
        root = workdir / "checkpoints"
        files, others = _files(root / str(newest)), _files(root / str(before))
        file = files[(number // len(_KINDS)) % len(files)]
        kind = _KINDS[number % len(_KINDS)]
        same = [o for o in others if o.parent.name == file.parent.name]
        other = next((o for o in same if o.name == file.name), same[0] if same else others[0])
        if kind is _swap and other.read_bytes() == file.read_bytes():
            kind = _flip  # the same bytes in both steps: nothing to swap
        kind(file, other, draw)
        if kind is _swap:
            other.write_bytes(file.read_bytes())  # only the newest is to be damaged
            shutil.rmtree(root / str(before))
            shutil.copytree(finished / "checkpoints" / str(before), root / str(before))
        capsys.readouterr()
        assert recovery.newest_good_step(workdir) == before, (kind.__name__, file)
        said = capsys.readouterr().err
        if file.name != "manifest.json":
            # A step that has lost its manifest is named when the run goes on; see below.
            assert f"step {newest}" in said
            assert str(file.relative_to(root / str(newest))) in said or "damaged" in said
        found += 1
        number += 1
        shutil.rmtree(workdir)
    assert found == _FAULTS


@pytest.mark.parametrize("kind", _KINDS if IS_LONG else [_flip])
@pytest.mark.parametrize("what", ["manifest.json", "d"])
def test_a_run_goes_on_from_the_step_before(tmp_path, finished, corpus, kind, what):
    """By the command line: named, set aside, and the end is that of the undamaged run."""
    workdir = tmp_path / "run" / "workdir"
    shutil.copytree(finished, workdir)
    newest, before = sorted(checkpoint.steps(finished))[::-1]
    steps = [workdir / "checkpoints" / str(s) for s in (newest, before)]
    file, other = (
        max(
            (p for p in step.rglob("*") if p.is_file() and what in (p.name, p.parent.name)),
            key=lambda p: p.stat().st_size,
        )
        for step in steps
    )
    kept = other.read_bytes()
    kind(file, other, random.Random(1))
    other.write_bytes(kept)
    run = Started(tmp_path / "run", corpus)
    assert run.finish() == [0], run.log()
    assert f"step {newest} is moved to " in run.log()
    assert f"resuming at step {before}" in run.log()
    assert losses(workdir) == losses(finished) and max(checkpoint.steps(workdir)) == STEPS
    assert [p.name.split("-")[0] for p in (workdir / "set_aside").iterdir()] == [str(newest)]


def test_nothing_good_is_left(tmp_path, finished, corpus):
    """Exit code 5, every step named, and nothing is trained or removed."""
    workdir = shutil.copytree(finished, tmp_path / "run" / "workdir")
    for step in checkpoint.steps(workdir):
        _flip(
            workdir / "checkpoints" / str(step) / "_CHECKPOINT_METADATA",
            workdir,
            random.Random(2),
        )
    before = sorted(p.relative_to(workdir) for p in workdir.rglob("*"))
    run = Started(tmp_path / "run", corpus)
    assert run.finish() == [5], run.log()
    for step in checkpoint.steps(workdir):
        assert f"step {step}: _CHECKPOINT_METADATA is damaged" in run.log()
    assert sorted(p.relative_to(workdir) for p in workdir.rglob("*")) == before
    listed = subprocess.run(
        [sys.executable, "-m", "bert_jax", "checkpoints", "verify", workdir],
        capture_output=True,
        text=True,
    )
    assert listed.returncode == 5 and listed.stdout.count("_CHECKPOINT_METADATA") == 2
