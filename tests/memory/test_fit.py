"""A run that does not fit is refused before it is compiled; `--fit-memory` chooses what does."""

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.memory_estimate import of_plan
from bert_jax.__main__ import main
from bert_jax.config import EvaluationConfig, OptimizerConfig, PhaseConfig, flatten
from bert_jax.errors import UsageError
from bert_jax.memory import estimate, fit
from bert_jax.model import sharding
from bert_jax.runtime import host_allocator
from bert_jax.training import compiled_steps, pretrain
from bert_jax.update.step import temporary_bytes
from tests import tiny_corpus
from tests.paths import ROOT

_PLANS = {
    f"{plan['config']} {plan['topology']} {plan['slices']}": plan
    for plan in json.loads((ROOT / "docs" / "plans.json").read_text())
}
_COMPARED = (
    "bert_base_64core v5e:8x8 1", "bert_base_64core v6e:8x8 1", "bert_large_64core_2k v5e:8x8 1",
    "bert_large_64core v5e:4x4 2", "bert_large_64core tpu7x:2x4x4 1",
)  # fmt: skip


# --- the estimate --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", _COMPARED)
def test_the_estimate_is_that_of_the_tpu_compiler(name):
    """Within a fifth, for steps of docs/plans.json."""
    for shape, estimated, exact in of_plan(_PLANS[name]):
        assert estimated == pytest.approx(exact, rel=0.2), shape


# --- the order of changes ------------------------------------------------------------------------


def names(changes) -> list[str]:
    return [name for name, _ in changes]


def test_microbatches_come_first_and_then_rematerialisation():
    config = tiny_corpus.tiny_config()  # 16 rows, and 8
    found = names(fit.candidates(config, shards=2, platform="tpu"))
    steps = "set optimizer.gradient_accumulation_steps"
    assert found[:2] == [f"{steps}=2", f"{steps}=4"]
    assert found[2:5] == [
        f"set compute.remat=dots{more}" for more in ("", f" {steps}=2", f" {steps}=4")
    ]
    assert found[-1] == f"set compute.remat=full set compute.gather=per_layer {steps}=4"
    # On a CPU rematerialisation has an effect in a loop only, and there are no gathers.
    found = names(fit.candidates(config, shards=1, platform="cpu"))
    assert found[3] == "set compute.remat=dots set compute.layers=scan"
    assert not any("gather" in name for name in found)


def test_evaluations_are_halved():
    config = tiny_corpus.tiny_config()  # 16 rows
    found = names(fit.evaluation_candidates(config, devices=4))
    assert found == [f"set evaluation.batch_size={rows}" for rows in (8, 4)]


def first(needs: list[float], **options) -> str | None:
    changes = [(str(i), replace(tiny_corpus.tiny_config(), seed=i)) for i in range(len(needs))]
    found = fit.first_that_fits(
        changes, room=100, expected=lambda config: needs[config.seed], **options
    )
    return None if found is None else found.name


def test_the_first_change_that_surely_fits_else_the_smallest_that_may():
    assert first([140, 110, 90]) == "2"
    assert first([140, 110, 90, 70], margin=1.25) == "3"
    assert first([140, 120, 90, 95], margin=1.25) == "2"
    assert first([140, 130], margin=1.25) is None


def test_a_compiler_decides_what_is_not_surely_too_much():
    asked = []

    def compiled(config) -> float:
        asked.append(config.seed)
        return 101 if config.seed < 3 else 99

    assert first([140, 90, 80, 120], margin=1.25, compiled=compiled) == "3"
    assert asked == [1, 2, 3]
    assert first([90, 80, 120, 70], margin=1.25, compiled=compiled, tries=2) is None


# --- the command ---------------------------------------------------------------------------------

_CONFIG = tiny_corpus.tiny_config(
    model=dataclasses.replace(
        tiny_corpus.tiny_config().model, hidden_size=64, intermediate_size=256
    ),
    optimizer=OptimizerConfig(warmup_steps=1),
    phases=(PhaseConfig(sequence_length=32, steps=2, global_batch_size=256, max_predictions=5),),
    evaluation=EvaluationConfig(every_steps=0, num_examples=16, batch_size=64),
)


def errors(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "error: " in line]


@pytest.fixture
def free(monkeypatch):
    """Sets how much memory the steps of each of the eight devices have before any is compiled."""

    def is_now(size: int) -> None:
        own = estimate.process_bytes(platform="cpu")
        monkeypatch.setattr(fit, "free_bytes", lambda _: 8 * size + own)

    return is_now


def test_what_does_not_fit_is_refused_before_compiling(tmp_path, corpus, free, monkeypatch, capsys):
    def compiles(_):
        raise UsageError("it was compiled")

    monkeypatch.setattr(compiled_steps, "compile_lowered", compiles)
    path = tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG)
    command = ["pretrain", str(path), "--corpus", str(corpus), "--workdir", str(tmp_path / "run")]
    free(7_000_000)
    assert main(command) == 2
    (line,) = errors(capsys)
    assert re.search(
        r"phase 0: a step would need about 0.1 GiB a device.*are free: let --fit-memory choose, "
        r"or --set",
        line,
    )
    assert not (tmp_path / "run").exists()
    # What it says to type is enough: it comes to the compiler.
    main([*command, *line.partition(", or ")[2].split()])
    assert errors(capsys)[0].endswith("it was compiled")
    free(10_000)
    assert main([*command[:-1], str(tmp_path / "other")]) == 2
    assert errors(capsys)[0].endswith("a smaller batch or model, more devices or more memory")


def test_fit_chooses_once_for_a_run(tmp_path, corpus, free, monkeypatch, capsys):
    path = tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG)
    workdir = tmp_path / "run"
    # The name that it had before still works.
    command = ["pretrain", str(path), "--corpus", str(corpus), "--workdir", str(workdir), "--fit"]
    free(11_000_000)

    def chosen() -> int:
        stored = json.loads((workdir / "config.json").read_text())["config"]
        return flatten(stored)[fit.MICROBATCHES]

    def too_much(program, *, config, state, batch, mesh, **_):
        """Compares the estimate with this compiler's figure; larger shapes are in benchmarks/."""
        places = {"mesh": mesh, "platform": "cpu"}
        total = estimate.of_train_step(config, state, batch, **places).total
        exact = sharding.bytes_per_device(state) + temporary_bytes(program.memory_analysis())
        assert total == pytest.approx(exact, rel=0.2)
        raise UsageError("after all")

    with monkeypatch.context() as patch:
        patch.setattr(compiled_steps, "require_memory", too_much)
        assert main(command) == 2
    assert chosen() == 2
    # Nothing hangs on it yet.
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    here = {"mesh": mesh, "directory": workdir, "choose": True}
    free(2**30)
    settled = fit.settle(_CONFIG, pretrain.demand(mesh), **here)
    assert settled.config == _CONFIG and fit.MICROBATCHES in settled.allowed
    free(11_000_000)
    assert main(command) == 0
    assert f"--fit-memory: --set {fit.MICROBATCHES}=2: about" in capsys.readouterr().err
    # Now the same command goes on, whatever is free, unless it is allowed to change.
    free(2**30)
    assert main(command) == 0
    assert f"--fit-memory: as this run began: --set {fit.MICROBATCHES}=2" in capsys.readouterr().err
    assert chosen() == 2
    assert main(command[:-1]) == 3
    settled = fit.settle(_CONFIG, pretrain.demand(mesh), **here, allowed=[fit.MICROBATCHES])
    assert settled.config == _CONFIG
    # Or it began on fewer devices, and these cannot share a batch in as many pieces.
    stored = json.loads((workdir / "config.json").read_text())
    stored["config"]["optimizer"]["gradient_accumulation_steps"] = 256
    (workdir / "config.json").write_text(json.dumps(stored))
    assert main(command) == 0
    assert f"began with --set {fit.MICROBATCHES}=256, which does not" in capsys.readouterr().err
    assert chosen() == 1


def test_the_allocator_changes_where_a_run_needs_much_and_not_by_a_check(free, monkeypatch):
    acts = []
    monkeypatch.setattr(host_allocator, "map_large_blocks", lambda: acts.append("mapped"))
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    here = {"mesh": mesh, "directory": Path("no-workdir"), "choose": False}
    free(2**30)
    fit.settle(_CONFIG, pretrain.demand(mesh), **here).set_up_allocator()
    free(20_000_000)
    settled = fit.settle(_CONFIG, pretrain.demand(mesh), **here)
    assert not acts
    settled.set_up_allocator()
    assert acts == ["mapped"]
