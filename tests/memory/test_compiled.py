"""A step that needs more memory than is free is refused, with the setting that would fit."""

import contextlib
import resource
from types import SimpleNamespace

import jax
import pytest

from bert_jax.__main__ import main
from bert_jax.config import OptimizerConfig, PhaseConfig
from bert_jax.errors import UsageError
from bert_jax.memory import compiled, estimate
from bert_jax.memory.free import free_bytes, free_bytes_of_host
from bert_jax.model import sharding
from bert_jax.registry import OBJECTIVES
from bert_jax.runtime import host_allocator
from bert_jax.training import compiled_steps, device_feed
from bert_jax.update.state import TrainState
from tests import tiny_corpus

_MEBI = 2**20
_CONFIG = tiny_corpus.tiny_config(
    optimizer=OptimizerConfig(warmup_steps=2),
    phases=(PhaseConfig(sequence_length=32, steps=5, global_batch_size=16, max_predictions=5),),
)


@pytest.fixture
def machine(tmp_path):
    """A host with 8 GiB left, of which a group may take 3 GiB more."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:    8388608 kB\n")
    (tmp_path / "proc/self/statm").write_text("1024 1 1 1 1 1 0\n")
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup/memory.current").write_text(f"{1024 * _MEBI}\n")
    (tmp_path / "cgroup/memory.stat").write_text(f"anon 5\ninactive_file {512 * _MEBI}\n")
    (tmp_path / "cgroup/memory.max").write_text(f"{3584 * _MEBI}\n")
    return tmp_path


def test_the_least_of_all_limits_counts(machine, monkeypatch):
    def found() -> int | None:
        return free_bytes_of_host(machine / "proc", machine / "cgroup")

    assert found() == 3072 * _MEBI
    (machine / "cgroup/memory.max").write_text("max\n")
    assert found() == 8192 * _MEBI
    version_1 = machine / "cgroup/memory"
    version_1.mkdir()
    (version_1 / "memory.limit_in_bytes").write_text(f"{100 * _MEBI}\n")
    (version_1 / "memory.usage_in_bytes").write_text(f"{30 * _MEBI}\n")
    (version_1 / "memory.stat").write_text(f"total_inactive_file {10 * _MEBI}\n")
    assert found() == 80 * _MEBI
    # A process in a group of its own, within others that have limits, too.
    inner = version_1 / "slurm/job_7"
    inner.mkdir(parents=True)
    (machine / "proc/self/cgroup").write_text("5:devices:/\n4:cpu,memory:/slurm/job_7\n0::/user\n")
    for name in ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"):
        (inner.parent / name).write_text((version_1 / name).read_text())
        (inner / name).write_text((version_1 / name).read_text())
    (inner / "memory.limit_in_bytes").write_text(f"{200 * _MEBI}\n")
    (inner.parent / "memory.limit_in_bytes").write_text(f"{60 * _MEBI}\n")
    assert found() == 40 * _MEBI
    (machine / "cgroup/user").mkdir()
    (machine / "cgroup/user/memory.max").write_text(f"{20 * _MEBI}\n")
    (machine / "cgroup/user/memory.current").write_text("0\n")
    (machine / "cgroup/user/memory.stat").write_text("anon 5\n")
    assert found() == 20 * _MEBI
    pages = 1024 * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (pages + 7 * _MEBI, -1))
    assert found() == 7 * _MEBI
    monkeypatch.undo()
    assert free_bytes_of_host(machine / "none", machine / "none") is None


def test_this_machine_and_accelerators():
    assert host_allocator.kept_bytes() >= 0
    assert (free_bytes(jax.devices()[0]) or 0) > 100 * _MEBI
    stats = {"bytes_limit": 100, "bytes_in_use": 30}
    for found, expected in ((stats, 70), ({}, None), (None, None)):
        device = SimpleNamespace(platform="tpu", memory_stats=lambda found=found: found)
        assert free_bytes(device) == expected


def program(needed: int) -> SimpleNamespace:
    sizes = SimpleNamespace(
        temp_size_in_bytes=needed, output_size_in_bytes=50, alias_size_in_bytes=50
    )
    return SimpleNamespace(memory_analysis=lambda: sizes)


@pytest.mark.parametrize(
    ("needed", "remedy"),
    [
        (99, None),
        (101, "set optimizer.gradient_accumulation_steps=2"),
        (250, "set optimizer.gradient_accumulation_steps=4"),
        (9000, "it needs more memory, or a smaller phases.0.global_batch_size"),
    ],
)
def test_the_first_change_that_fits(monkeypatch, needed, remedy):
    """By the compiler's figure, times the factor by which the estimate shrinks."""
    monkeypatch.setattr(compiled, "free_bytes", lambda _: 100 * 2**30)
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    fields = OBJECTIVES[_CONFIG.objective].fields
    options = {
        "config": _CONFIG,
        "phase": 0,
        "state": TrainState.abstract(_CONFIG, mesh),
        "batch": device_feed.abstract_batch(_CONFIG.phases[0], fields=fields, mesh=mesh),
        "mesh": mesh,
    }
    if remedy is None:
        compiled.require_memory(program(needed * 2**30), **options)
        return
    with pytest.raises(UsageError) as caught:
        compiled.require_memory(program(needed * 2**30), **options)
    said = (
        f"phase 0: a step and a save need {needed}.0 GiB beside the state, and 100.0 GiB are free: "
    )
    assert str(caught.value).startswith(said + remedy)


def test_a_run_that_does_not_fit_is_one_line(tmp_path, corpus, monkeypatch, capsys):
    path = tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG)
    command = ["pretrain", str(path), "--corpus", str(corpus), "--workdir"]
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "free_bytes", lambda _: 100_000)
        assert main([*command, str(tmp_path / "checked")]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "error" in x]
    assert "GiB are free: it needs more memory, or a smaller phases.0" in line

    def exhausted(_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")

    monkeypatch.setattr(compiled_steps, "compile_lowered", exhausted)
    assert main([*command, str(tmp_path / "unforeseen")]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "error" in x]
    assert "not enough memory (RESOURCE_EXHAUSTED: Out of memory" in line
    assert "--fit-memory chooses what does, or --set optimizer.gradient_accumulation" in line

    def refused(_):
        raise MemoryError

    monkeypatch.setattr(compiled_steps, "compile_lowered", refused)
    assert main([*command, str(tmp_path / "refused")]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "error" in x]
    assert "not enough memory (the limit of this process): --fit-memory" in line


def test_a_save_in_the_background_needs_room_for_a_copy(monkeypatch):
    """On a CPU, whose memory is the host's: by the estimate, and by the compiler's figure."""
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    state = TrainState.abstract(_CONFIG, mesh)
    copy = estimate.saved_bytes(state, platform="cpu")
    assert (
        copy
        == sharding.bytes_per_device(state)
        > 12 * sum(leaf.size for leaf in jax.tree.leaves(state.params))
    )
    assert estimate.saved_bytes(state, platform="tpu") == 0
    fields = OBJECTIVES[_CONFIG.objective].fields
    batch = device_feed.abstract_batch(_CONFIG.phases[0], fields=fields, mesh=mesh)
    options = {"config": _CONFIG, "phase": 0, "state": state, "batch": batch, "mesh": mesh}
    for free, is_enough in ((2**30 + copy, True), (2**30 + copy - 1, False)):
        monkeypatch.setattr(compiled, "free_bytes", lambda _, free=free: free)
        with contextlib.nullcontext() if is_enough else pytest.raises(UsageError):
            compiled.require_memory(program(2**30), **options)
