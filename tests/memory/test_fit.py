"""A step that does not fit into memory ends with the fix; `--fit-memory` chooses what fits."""

import contextlib
import dataclasses
import json
import math
from types import SimpleNamespace

import jax
import pytest

from bert_jax.__main__ import main
from bert_jax.config import EvaluationConfig, OptimizerConfig, PhaseConfig
from bert_jax.errors import UsageError
from bert_jax.memory import fit
from bert_jax.model import sharding
from bert_jax.runtime import host_allocator
from bert_jax.training import compiled_steps
from bert_jax.update.state import TrainState
from tests import tiny_corpus

_CONFIG = tiny_corpus.tiny_config(
    model=dataclasses.replace(
        tiny_corpus.tiny_config().model, hidden_size=64, intermediate_size=256
    ),
    optimizer=OptimizerConfig(warmup_steps=1),
    phases=(PhaseConfig(sequence_length=32, steps=2, global_batch_size=256, max_predictions=5),),
    evaluation=EvaluationConfig(every_steps=0, num_examples=16, batch_size=64),
)
_GIB = 2**30


def errors(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "error: " in line]


# --- the search ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constant", "share", "microbatches", "compilations"),
    [
        (10, 80, 1, 1),  # fits
        (10, 100, 2, 2),
        (10, 700, 8, 2),  # one jump
        (60, 300, 8, 3),  # a part that microbatches do not reduce
        (90, 700, 128, 4),  # the last attempt takes as many as possible
        (101, 1, None, 4),
        (math.inf, 0, None, 4),  # the compiler refuses each program
    ],
)
def test_microbatches_multiply_until_a_step_fits(constant, share, microbatches, compilations):
    compiled = []

    def needed(config) -> float:
        compiled.append(config.optimizer.gradient_accumulation_steps)
        return constant + share / compiled[-1]

    found = fit.search(
        _CONFIG,
        needed=needed,
        smaller=lambda config, factor: fit.with_microbatches(config, factor, shards=2),
        room=100,
    )
    assert len(compiled) == compilations
    if microbatches is None:
        assert found is None
    else:
        assert found is not None and compiled[-1] == microbatches
        assert found[0].optimizer.gradient_accumulation_steps == microbatches


def test_microbatches_divide_the_batches_of_all_phases():
    phases = tuple(dataclasses.replace(_CONFIG.phases[0], global_batch_size=n) for n in (48, 36))
    config = dataclasses.replace(_CONFIG, phases=phases)
    found = []
    while (more := fit.with_microbatches(config, 2, shards=1)) is not None:
        config = more
        found.append(config.optimizer.gradient_accumulation_steps)
    assert found == [2, 4, 12]


def test_evaluation_batches_shrink_to_a_row_per_device():
    smaller = fit.with_fewer_rows(_CONFIG, 4, devices=4)  # 64 rows
    assert smaller is not None and smaller.evaluation.batch_size == 16
    smaller = fit.with_fewer_rows(smaller, 8, devices=4)
    assert smaller is not None and smaller.evaluation.batch_size == 4
    assert fit.with_fewer_rows(smaller, 2, devices=4) is None


# --- a compiled step -----------------------------------------------------------------------------


def program(needed: int) -> SimpleNamespace:
    sizes = SimpleNamespace(
        temp_size_in_bytes=needed, output_size_in_bytes=50, alias_size_in_bytes=50
    )
    return SimpleNamespace(memory_analysis=lambda: sizes)


@pytest.mark.parametrize(
    ("needed", "fix"),
    [
        (99, None),
        (101, "set optimizer.gradient_accumulation_steps=2"),
        (250, "set optimizer.gradient_accumulation_steps=4"),
        (9000, "set optimizer.gradient_accumulation_steps=128"),
    ],
)
def test_a_step_that_does_not_fit_names_the_fix(monkeypatch, needed, fix):
    monkeypatch.setattr(fit, "free_bytes", lambda _: 100 * _GIB)
    monkeypatch.setattr(host_allocator, "map_large_blocks", lambda: None)
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    options = {"config": _CONFIG, "phase": 0, "state": {}, "mesh": mesh}
    with contextlib.nullcontext() if fix is None else pytest.raises(UsageError) as caught:
        fit.require_memory(program(needed * _GIB), **options)
    if fix is not None:
        assert str(caught.value).startswith("phase 0: ") and fix in str(caught.value)


@pytest.mark.parametrize("margin", [0, -1])
def test_a_save_in_the_background_needs_room_for_a_copy(monkeypatch, margin):
    """On a CPU, which shares the memory of the host. An allocator that keeps freed blocks would
    double what a large step takes.
    """
    mapped = []
    monkeypatch.setattr(host_allocator, "map_large_blocks", lambda: mapped.append(1))
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    state = TrainState.abstract(_CONFIG, mesh)
    needed = _GIB + sharding.bytes_per_device(state) + margin
    monkeypatch.setattr(fit, "free_bytes", lambda _: needed)
    with contextlib.nullcontext() if margin == 0 else pytest.raises(UsageError):
        fit.require_memory(program(_GIB), config=_CONFIG, phase=0, state=state, mesh=mesh)
    assert mapped


# --- the command ---------------------------------------------------------------------------------


def command(tmp_path, corpus, name: str, *more: str) -> list[str]:
    path = tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG)
    workdir = str(tmp_path / name)
    return ["pretrain", str(path), "--corpus", str(corpus), "--workdir", workdir, *more]


def test_a_run_that_does_not_fit_is_one_line_with_a_fix_that_works(
    tmp_path, corpus, monkeypatch, capsys
):
    # Measured: the step takes 13 MB of each of eight devices, and 8 MB with two microbatches.
    with monkeypatch.context() as patch:
        patch.setattr(fit, "free_bytes", lambda _: 8 * 12_000_000)
        assert main(command(tmp_path, corpus, "run")) == 2
        (line,) = errors(capsys)
        assert "GiB are free: let --fit-memory choose (" in line
        more = line.partition("), or ")[2].split()
        assert main(command(tmp_path, corpus, "run", *more)) == 0

    for error, name in (
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 b."), "one"),
        (MemoryError(), "two"),
    ):

        def fails(_, error=error):
            raise error

        monkeypatch.setattr(compiled_steps, "compile_lowered", fails)
        capsys.readouterr()
        assert main(command(tmp_path, corpus, name)) == 2
        (line,) = errors(capsys)
        assert "not enough memory (" in line and "--fit-memory" in line


def test_fit_memory_chooses_once_for_a_run(tmp_path, corpus, monkeypatch, capsys):
    begin = command(tmp_path, corpus, "run", "--fit-memory")
    workdir, compiled = tmp_path / "run", []

    def chosen() -> int:
        stored = json.loads((workdir / "config.json").read_text())["config"]
        return stored["optimizer"]["gradient_accumulation_steps"]

    def free(size: int) -> None:
        monkeypatch.setattr(fit, "free_bytes", lambda _: 8 * size)

    original = compiled_steps.compile_lowered
    monkeypatch.setattr(
        compiled_steps, "compile_lowered", lambda lowered: compiled.append(1) or original(lowered)
    )
    # Of this the state and its save take 2.1 MB.
    free(12_000_000)
    assert main(begin) == 0
    number = chosen()
    assert number > 1 and f"--set {fit.MICROBATCHES}={number}" in capsys.readouterr().err
    assert not compiled, "the program of the search is used"
    # The same command resumes with the same choice, whatever is free.
    free(2**30)
    assert main(begin) == 0 and chosen() == number
    assert main(begin[:-1]) == 3
    # These devices cannot share a batch in as many pieces: the run chooses again.
    stored = json.loads((workdir / "config.json").read_text())
    stored["config"]["optimizer"]["gradient_accumulation_steps"] = 256
    (workdir / "config.json").write_text(json.dumps(stored))
    assert main(begin) == 0 and chosen() == 1
    # Nothing fits.
    free(10_000)
    assert main(command(tmp_path, corpus, "other", "--fit-memory")) == 2
    assert "more devices or more memory" in errors(capsys)[-1]
    assert not (tmp_path / "other").exists()
