"""Checkpoints: the same bits on any mesh, the steps that are kept, and damaged steps."""

import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from bert_jax.config import CheckpointConfig, ModelConfig, TrainConfig
from bert_jax.errors import NoUsableCheckpoint, WorkdirTaken
from bert_jax.update.state import TrainState
from bert_jax.workdir import checkpoint
from bert_jax.workdir.checkpoint import Checkpoints
from tests.batches import mesh_of
from tests.limits import HUNG
from tests.tiny_corpus import tiny_config, write_config

pytestmark = pytest.mark.core

_CONFIG = tiny_config()


def numbers(config: TrainConfig, *, step: int) -> TrainState:
    """A state on the host in which every number follows from its place and the step."""
    leaves, structure = jax.tree.flatten(TrainState.abstract(config, mesh_of(1)))
    filled = [
        (np.sin(np.arange(leaf.size) + 1000 * place) + step).astype(leaf.dtype).reshape(leaf.shape)
        for place, leaf in enumerate(leaves)
    ]
    state = jax.tree.unflatten(structure, filled)
    return dataclasses.replace(state, step=np.int32(step))


def assert_same(state: TrainState, expected: TrainState) -> None:
    ours, theirs = (jax.tree.leaves_with_path(s) for s in (state, expected))
    assert [path for path, _ in ours] == [path for path, _ in theirs]
    for (path, a), (_, b) in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), jax.tree_util.keystr(path)


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("two-steps")
    checkpoints = Checkpoints(workdir, CheckpointConfig(keep_last=5))
    for step in (1, 2):
        checkpoints.save(numbers(_CONFIG, step=step).to_mesh(mesh_of(8)), step=step)
    checkpoints.close()
    return workdir


@pytest.fixture
def saved(tmp_path, two_steps):
    """A workdir with steps 1 and 2, saved on eight devices."""
    return shutil.copytree(two_steps, tmp_path / "run")


def test_a_replaced_trainer_completes_no_save_and_removes_no_step(saved):
    def guard(patience):
        raise WorkdirTaken("process 7 trains")

    checkpoints = Checkpoints(saved, CheckpointConfig(keep_last=1), guard=guard)
    checkpoints.save(numbers(_CONFIG, step=3).to_mesh(mesh_of(8)), step=3)
    with pytest.raises(WorkdirTaken):
        checkpoints.close()
    assert checkpoint.steps(saved) == [1, 2]


@pytest.mark.parametrize("there, back", [(8, 1), (1, 8), (8, 8)])
def test_the_same_bits_come_back_on_any_mesh(tmp_path, there, back):
    first = Checkpoints(tmp_path, CheckpointConfig())
    first.save(numbers(_CONFIG, step=7).to_mesh(mesh_of(there)), step=7)
    first.close()
    mesh = mesh_of(back)
    assert checkpoint.steps(tmp_path) == [7]
    state = checkpoint.load_state(tmp_path, step=7, config=_CONFIG, mesh=mesh)
    assert_same(state, numbers(_CONFIG, step=7))
    for leaf in jax.tree.leaves(state):
        assert leaf.sharding == NamedSharding(mesh, jax.P())
    params = checkpoint.load_params(tmp_path, step=7, config=_CONFIG, mesh=mesh)
    jax.tree.map(np.testing.assert_array_equal, params, state.params)


def test_what_is_saved_is_what_was_there_when_save_returned(tmp_path):
    """The next steps write into the same buffers while the save is still under way."""
    model = ModelConfig(
        vocab_size=30_000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2
    )
    config, mesh = TrainConfig(model=model), mesh_of(8)
    # Copies on all devices: each device saves a part of a large array.
    state = numbers(config, step=2).to_mesh(mesh, shard_weights=False)
    expected = jax.tree.map(lambda x: x + x.dtype.type(1), numbers(config, step=2))
    layout = jax.tree.map(lambda x: x.sharding, state)
    with jax.set_mesh(mesh):
        advance = jax.jit(
            lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0, out_shardings=layout
        )
        advance = advance.lower(state).compile()
        checkpoints = Checkpoints(tmp_path, CheckpointConfig())
        state = advance(state)
        checkpoints.save(state, step=3)
        # On a CPU an array that is saved whole is not copied, and not written over meanwhile.
        saved_leaf = max(jax.tree.leaves(state), key=lambda leaf: leaf.size)
        for _ in range(5):
            state = advance(state)
        assert saved_leaf.is_deleted(), "the state was not donated: nothing was tested"
        jax.block_until_ready(state)
        checkpoints.close()
        loaded = checkpoint.load_state(tmp_path, step=3, config=config, mesh=mesh)
    assert_same(loaded, expected)


@pytest.mark.parametrize(
    ("keep_every", "named", "kept"),
    [(4, (), [4, 8, 10, 12]), (0, (), [10, 12]), (0, (2, 6, 7), [2, 6, 10, 12])],
)
def test_the_newest_every_nth_and_named_steps_are_kept(tmp_path, keep_every, named, kept):
    config = CheckpointConfig(keep_last=2, keep_every=keep_every)
    checkpoints = Checkpoints(tmp_path, config, kept=named)
    state = numbers(_CONFIG, step=0).to_mesh(mesh_of(1))
    for step in range(2, 13, 2):
        checkpoints.save(state, step=step)
    checkpoints.close()
    assert checkpoint.steps(tmp_path) == kept


def test_what_a_kill_left_behind_is_no_step(saved):
    """Orbax writes a step under another name and renames it when it is whole."""
    unfinished = saved / "checkpoints" / "3.orbax-checkpoint-tmp-1"
    shutil.copytree(saved / "checkpoints" / "2", unfinished)
    assert checkpoint.steps(saved) == [1, 2]
    checkpoint.remove_unfinished(saved)
    assert not unfinished.exists() and checkpoint.steps(saved) == [1, 2]


def test_nothing_is_pickled(saved, monkeypatch):
    for file in (saved / "checkpoints").rglob("*"):
        if file.is_file():
            head = file.read_bytes()[:2]
            # Protocols 2 to 5 begin with an opcode and their number.
            assert head not in {bytes([0x80, n]) for n in range(2, 6)}, file
            assert file.suffix not in (".pkl", ".pickle", ".pt", ".bin"), file

    def refuse(*_, **__):
        raise AssertionError("something is unpickled")

    for name in ("Unpickler", "_Unpickler", "load", "loads"):
        monkeypatch.setattr(pickle, name, refuse)
    mesh = mesh_of(8)
    state = checkpoint.load_state(saved, step=2, config=_CONFIG, mesh=mesh)
    checkpoint.load_params(saved, step=1, config=_CONFIG, mesh=mesh)
    assert int(state.step) == 2


_DAMAGE = {
    "missing": lambda file: file.unlink(),
    "short": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "garbled": lambda file: file.write_bytes(bytes(b ^ 0x55 for b in file.read_bytes())),
}
# Loads step 2 of each workdir as evaluation and as resumption do, and prints what is raised.
_LOAD = """
import json, sys
from pathlib import Path
from bert_jax import config as configs
from bert_jax import config_loader
from bert_jax.errors import BertJaxError
from bert_jax.model import sharding
from bert_jax.workdir import checkpoint

config = config_loader.load_config_json(Path(sys.argv[1]))
mesh = sharding.make_mesh(fsdp=-1, tensor=1)
results = {}
for argument in sys.argv[2:]:
    workdir, results[argument] = Path(argument), []
    for load in (
        lambda: checkpoint.load_params(workdir, step=2, config=config, mesh=mesh),
        lambda: checkpoint.load_state(workdir, step=2, config=config, mesh=mesh),
    ):
        try:
            load()
        except BertJaxError as error:
            results[argument].append([type(error).__name__, str(error)])
print(json.dumps(results))
"""


def load_apart(tmp_path, config: TrainConfig, workdirs: list) -> dict[str, list]:
    """In a separate process: after an error, Orbax leaves failing tasks in its event loop."""
    path = write_config(tmp_path / "config.json", config)
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(path), *map(str, workdirs)],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "8"},
        capture_output=True,
        text=True,
        timeout=HUNG,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_damaged_step_is_reported(tmp_path, two_steps):
    """The files of the arrays, or those that describe them: missing, cut short, or garbled."""
    workdirs = []
    for what in ("arrays", "descriptions"):
        for how, damage in _DAMAGE.items():
            workdir = shutil.copytree(two_steps, tmp_path / f"{what}-{how}")
            files = [p for p in (workdir / "checkpoints" / "2").rglob("*") if p.is_file()]
            chosen = [p for p in files if (p.parent.name == "d") == (what == "arrays")]
            assert 0 < len(chosen) < len(files)
            for file in chosen:
                damage(file)
            workdirs.append(workdir)
    for workdir, errors in load_apart(tmp_path, _CONFIG, workdirs).items():
        assert [name for name, _ in errors] == ["NoUsableCheckpoint"] * 2, workdir
        for _, message in errors:
            assert message.startswith(f"checkpoint {workdir}/checkpoints/2 cannot be read: ")
            assert "\n" not in message and "available: 1" in message


def test_a_missing_step_is_reported(saved):
    with pytest.raises(NoUsableCheckpoint, match="available: 1, 2"):
        checkpoint.load_params(saved, step=3, config=_CONFIG, mesh=mesh_of(1))
