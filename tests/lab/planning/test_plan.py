"""Plans: their tables, arithmetic and JSON, and real compilations."""

import collections
import dataclasses
import importlib.util
import json
import math
import re
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax import config_loader
from bert_jax.__main__ import main
from bert_jax.config import MeshConfig, PhaseConfig
from bert_jax.errors import UsageError
from bert_jax.model import sharding
from bert_jax.update import compiler_options
from bert_jax_lab.cli import plan as plan_verb
from bert_jax_lab.planning import (
    collectives,
    compile,
    param_sharding,
    topologies,
    warnings,
)
from bert_jax_lab.planning import plan as planning
from bert_jax_lab.planning.topologies import CHIPS
from tests import tiny_corpus
from tests.paths import GOLDEN, ROOT

_ROOT = ROOT
_GOLDEN = GOLDEN / "collectives.json"

needs_compiler = [
    pytest.mark.tpu_compiler,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="needs the TPU compiler: the extra `plan`",
    ),
]


# --- tables ---------------------------------------------------------------------------------------


def _launch_table(name: str) -> list[dict[str, str]]:
    lines = (_ROOT / "launch" / f"{name}.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def _launched() -> list[str]:
    """Returns all slices with a type in launch/, under the names of `plan`. Their hosts and chips
    are compared with the planner's in tests/launch/test_scripts.py.
    """
    rows = _launch_table("accelerators")
    return [f"{row['generation']}:{each}" for row in rows for each in row["topologies"].split()]


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda c: c.generation)
def test_the_table_is_plausible(chip):
    assert 0.5e9 < chip.clock_hz < 2.5e9
    assert 0.9 < chip.compiler_bytes / chip.hbm_bytes < 1.01
    assert 50 < chip.peak_flops / chip.memory_bandwidth < 600


@pytest.mark.parametrize(
    ("name", "slices", "message"),
    [
        ("v3-64", 1, "write it as"),
        ("v9:4x4", 1, "unknown generation; choose from v2, v3"),
        ("v3:4x4x4", 1, "2 dimensions, such as v3:4x8"),
        ("v4:4x4", 1, "3 dimensions, such as v4:4x4x4"),
        ("v5e:4x0", 1, "2 dimensions"),
        ("v5e:4x4", 0, "at least 1"),
        ("v3:4x8", 2, "v4 or newer"),
    ],
)
def test_an_invalid_topology_is_rejected(name, slices, message):
    with pytest.raises(UsageError, match=message):
        topologies.parse(name, slices=slices)


# --- arithmetic -----------------------------------------------------------------------------------


def test_time_on_the_links():
    """Rings computed by hand: 64 v5e chips, 50 GB/s per link and direction."""
    chip = CHIPS["v5e"]
    one = collectives.Collective("all-gather", 10**9, tuple(range(64)))
    gather = collectives.seconds_on_the_links(one, size=64, chip=chip)
    assert gather == pytest.approx(63 / 64 * 1e9 / 100e9)
    both = dataclasses.replace(one, kind="all-reduce")
    assert collectives.seconds_on_the_links(both, size=64, chip=chip) == pytest.approx(2 * gather)
    across = collectives.Collective("all-reduce", 10**9, (), over_slices=True)
    assert collectives.seconds_on_the_links(across, size=2, chip=chip) == pytest.approx(1 / 3.125)
    # Two rings, one per core of the v3 chips, share the links.
    core = dataclasses.replace(one, group=tuple(range(0, 8, 2)))
    seconds = collectives.seconds_on_the_links(core, size=4, chip=CHIPS["v3"])
    assert seconds == pytest.approx(3 / 4 * 1e9 / 70e9)


@pytest.mark.parametrize(
    ("message", "needed", "available"),
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total "
            "memory required for HLO temporaries (40.01G) exceeds available HBM (15.48G).",
            40.01 * 2**30,
            15.48 * 2**30,
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Used 1.5T of 31.24G hbm.",
            1.5 * 2**40,
            31.24 * 2**30,
        ),
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total "
            "memory required for HLO temporaries (7.48G) exceeds available HBM (7.48G).",
            int(7.48 * 2**30) + 2**30 // 100,
            7.48 * 2**30,
        ),
    ],
)
def test_an_out_of_memory_error_has_both_sizes(message, needed, available):
    refusal = compile.error_of(RuntimeError(message), CHIPS["v3"], "step")
    assert isinstance(refusal, compile.DoesNotFit)
    assert (refusal.needed, refusal.available) == (int(needed), int(available))


def test_other_compiler_errors_are_one_line():
    """For example, the evaluation of `modernbert_base_50b`, 256 x 8,192, on v6e:8x8."""
    reason = "FAILED_PRECONDITION: Too many buffers are colored in the alternate memory. Could not"
    found = compile.error_of(RuntimeError(f"{reason} reserve\nmore"), CHIPS["v6e"], "train step")
    assert isinstance(found, compile.NotCompiled)
    assert str(found).startswith(f"train step: the compiler rejects it: {reason}")
    vmem = (
        "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of memory in memory space "
    )
    found = compile.error_of(RuntimeError(f"{vmem}vmem while"), CHIPS["v5e"], "train step")
    assert isinstance(found, compile.NotCompiled)
    error = TypeError("INVALID dtype: int4")
    assert compile.error_of(error, CHIPS["v6e"], "train step") is error


@pytest.fixture
def tiny():
    """Returns a tiny config, and the planner's arguments for four chips."""
    topology, config = topologies.parse("v5e:2x2"), tiny_corpus.tiny_config()
    return config, {"mesh": param_sharding.abstract_mesh(config, topology), "topology": topology}


_REJECTED = "the compiler rejects it: FAILED_PRECONDITION: no"


def test_a_rejected_train_step_is_a_warning(monkeypatch, capsys, tiny):
    def rejected(config, phase, *, mesh, topology):
        raise compile.NotCompiled(_REJECTED)

    monkeypatch.setattr(compile, "train_step", rejected)
    monkeypatch.setattr(compile, "evaluation_step", lambda *_, **__: _COMPILED)
    config, where = tiny
    phase = planning.phase_plan(config, 0, **where)
    assert not phase.fits and phase.memory_bytes is None
    plan_verb._print_phase(phase)
    assert (
        f"steps: NOT COMPILED: {_REJECTED}; change compute.layer_loop, " in capsys.readouterr().out
    )
    (warning, *_) = warnings.warnings(config, [phase], topology=where["topology"])
    assert _REJECTED in warning and warning.startswith(f"length {phase.sequence_length}: ")


def test_a_rejected_evaluation_step_has_a_fix_before_the_train_step_compiles(monkeypatch, tiny):
    def step(config, shape, *, mesh, topology):
        raise compile.NotCompiled(_REJECTED)

    def never(config, phase, *, mesh, topology):
        raise AssertionError("the train step is compiled")

    monkeypatch.setattr(compile, "evaluation_step", step)
    monkeypatch.setattr(compile, "train_step", never)
    config, where = tiny
    phase = planning.phase_plan(config, 0, **where)
    assert not phase.fits and phase.memory_bytes is None
    assert phase.remedy is not None
    assert _REJECTED in phase.remedy and "evaluation.batch_size" in phase.remedy


def test_the_fix_of_a_train_step_is_the_smallest_number_of_microbatches_that_fits(
    monkeypatch, tiny
):
    tried = []

    def step(config, phase, *, mesh, topology):
        tried.append(config.optimizer.gradient_accumulation_steps)
        if tried[-1] < 8:
            raise compile.DoesNotFit(12, 10)
        return _COMPILED

    monkeypatch.setattr(compile, "train_step", step)
    config, where = tiny
    phase = PhaseConfig(sequence_length=512, global_batch_size=256).resolved(0.15)
    found = planning.remedy(config, phase, compile.DoesNotFit(36, 10), **where)
    assert "optimizer.gradient_accumulation_steps=8 " in found and tried == [2, 4, 8]


@pytest.mark.parametrize(("tensor", "rows"), [(1, 64), (4, 64), (8, 128), (16, 256)])
def test_hosts_that_share_a_shard_each_make_its_rows(tensor, rows):
    """Sixteen devices, four per host, in order: 256 rows."""
    devices = np.array([SimpleNamespace(process_index=i // 4) for i in range(16)])
    mesh = SimpleNamespace(
        devices=devices.reshape(1, 16 // tensor, tensor), shape={"tensor": tensor}
    )
    assert planning.host_rows(mesh, 256) == rows


_COMPILED = compile.Compiled(
    memory=compile.Memory(weights=0, moments=0, batch=0, padding=0, temporaries=0, program=0),
    cycles=0,
    exposed_cycles=0,
    collectives=(),
)


def test_the_recipes_for_slices_save_by_minutes():
    """And hours and prices have one source, docs/plans.json."""
    for path in sorted((_ROOT / "configs").glob("*.py")):
        config = config_loader.load_config(path.stem)
        assert bool(config.checkpoint.every_minutes) is ("64core" in path.stem), path
        figures = r"\$\d|chip-hours|\d hours|ms a step"
        assert not re.search(figures, path.read_text(encoding="utf-8")), path


# --- placement ------------------------------------------------------------------------------------


def test_show_sharding_adds_up(capsys):
    assert main(["config", "sharding", "bert_large", "--topology", "v3:4x8"]) == 0
    printed = capsys.readouterr().out
    assert "encoder.layer_23.intermediate.kernel" in printed
    rows = param_sharding.placements(
        config_loader.load_config("bert_large"), topologies.parse("v3:4x8")
    )
    by_name = {row["name"]: row for row in rows}
    word = by_name["encoder.embeddings.word.embedding"]
    assert word["spec"] == [None, "fsdp"], "64 does not divide 30,522"
    assert word["bytes"] == 30522 * 1024 * 4 // 64
    assert sum(math.prod(row["shape"]) for row in rows) == 336_226_108
    # Only small parameters are copied.
    assert sum(row["bytes"] for row in rows) < 1.1 * 336_226_108 * 4 / 64
    config = dataclasses.replace(config_loader.load_config("bert_large"), mesh=MeshConfig(tensor=4))
    rows = param_sharding.placements(config, topologies.parse("v5e:4x4"))
    kernel = next(row for row in rows if row["name"] == "encoder.layer_0.intermediate.kernel")
    assert kernel["spec"] == ["fsdp", "tensor"] and kernel["bytes"] == 1024 * 4096 * 4 // 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config", "sharding", "bert_base"], "--topology"),
        (["config", "sharding", "bert_base", "--topology", "v3:4x8", "--set", "mesh.tensor=5"],
         "mesh.tensor"),
        (["config", "sharding", "bert_base", "--topology", "v3:4x8", "--set", "mesh.fsdp=7"],
         "does not cover 64 devices"),
        (["plan", "bert_base", "--topology", "v3"], "write it as"),
    ],
)  # fmt: skip
def test_usage_errors(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_without_the_compiler_a_plan_shows_how_to_install_it(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "libtpu" else found(name, *a)
    )
    assert main(["plan", "bert_base", "--topology", "v3:4x8"]) == 2
    assert "pip install 'libtpu>=0.0.50'" in capsys.readouterr().err


def test_a_compiler_that_differs_from_launched_runs_is_a_warning(monkeypatch):
    """Launched runs have the libtpu of the lock file."""
    (locked,) = re.findall(
        r"^libtpu==(\S+)", (_ROOT / "requirements-tpu.lock").read_text(), re.MULTILINE
    )

    def told(libtpu: str | None) -> list[str]:
        found = {} if libtpu is None else {"libtpu": libtpu}
        monkeypatch.setattr(warnings, "installed", lambda *names: found)
        topology = topologies.parse("v5e:2x2")
        lines = warnings.warnings(tiny_corpus.tiny_config(), (), topology=topology)
        return [line for line in lines if "libtpu" in line]

    assert told(locked) == told(None) == []
    (line,) = told("0.0.99")
    assert "by libtpu 0.0.99" in line and f"install libtpu=={locked}" in line


# --- JSON -----------------------------------------------------------------------------------------


def check_schema(plan: dict[str, Any]) -> None:
    def has(values: dict, kind: type, *, may_be_none: bool = False) -> None:
        assert {field.name for field in dataclasses.fields(kind)} <= values.keys()
        assert may_be_none or None not in values.values()

    has(plan, planning.Plan, may_be_none=True)
    assert plan["fits"] == all(phase["fits"] for phase in plan["phases"])
    for phase in plan["phases"]:
        has(phase, planning.PhasePlan, may_be_none=True)
        if not phase["fits"]:
            assert isinstance(phase["remedy"], str) and phase["step_seconds"] is None
            continue
        has({**phase, "remedy": ""}, planning.PhasePlan)
        has(phase["evaluation"], planning.EvaluationPlan)
        assert phase["memory_bytes"] == sum(phase["memory"].values()) <= phase["available_bytes"]
        assert 0 < phase["mfu"] < 1
        assert 0 <= phase["exposed_seconds"] <= 1.001 * phase["collective_seconds"]
        seconds = phase["compute_seconds"] + phase["exposed_seconds"]
        assert phase["step_seconds"] == pytest.approx(seconds)
        for collective in phase["collectives"]:
            has(collective, collectives.Traffic)
    if plan["fits"]:
        hours = sum(p["hours"] + p["evaluation"]["hours"] for p in plan["phases"])
        assert plan["total_hours"] == pytest.approx(hours)
        assert plan["chip_hours"] == pytest.approx(hours * plan["chips"])


# --- compilations ---------------------------------------------------------------------------------

_ROWS = {"sequence_length": 64, "steps": 9000, "global_batch_size": 64, "max_predictions": 10}
TINY = ("--set", f"phases={json.dumps([_ROWS])}", "--set", "model.num_hidden_layers=1")


def _plan(capsys, topology: str, *more: str, code: int = 0) -> dict[str, Any]:
    arguments = ["plan", "tiny_docs_cpu", "--topology", topology, "--json", *TINY, *more]
    assert main(arguments) == code, capsys.readouterr().err
    plan = json.loads(capsys.readouterr().out)
    check_schema(plan)
    return plan


def collective_counts(plan: dict[str, Any]) -> dict[str, int]:
    """`{"all-gather over fsdp": 5}` of the only phase, as in the golden file."""
    found: dict[str, int] = {}
    for traffic in plan["phases"][0]["collectives"]:
        name = f"{traffic['kind']} over {' x '.join(traffic['axes'])}"
        found[name] = found.get(name, 0) + traffic["count"]
    return found


@pytest.mark.parametrize(("topology", "slices"), [("v3:2x2", 1), ("v5e:2x2", 1), ("v5e:2x2", 2)])
class TestCompiled:
    pytestmark = needs_compiler

    def test_a_plan(self, topology, slices, capsys):
        plan = _plan(capsys, topology, "--slices", str(slices))
        assert plan["fits"] and plan["devices"] == 8 // (
            2 if (slices, topology) == (1, "v5e:2x2") else 1
        )
        phase = plan["phases"][0]
        clock = CHIPS[topology.split(":")[0]].clock_hz
        assert phase["compute_seconds"] == pytest.approx(phase["cycles"] / clock)
        kinds = {c["kind"] for c in plan["phases"][0]["collectives"]}
        assert "all-gather" in kinds, "weights are gathered, not summed with zeros"
        crossing = [c for c in plan["phases"][0]["collectives"] if c["axes"] == ["slice"]]
        assert bool(crossing) == (slices > 1)
        if slices > 1:
            # Once, after sharding: the transferred bytes are at most those that a slice keeps.
            stored = plan["phases"][0]["memory"]["weights"]
            assert sum(c["bytes"] for c in crossing) < 2 * stored
        golden = json.loads(_GOLDEN.read_text())
        counts = golden["counts"][f"{topology} x {slices}"]
        if collective_counts(plan) != counts and version("libtpu") != golden["libtpu"]:
            pytest.skip(f"the golden counts are those of libtpu {golden['libtpu']}")
        assert collective_counts(plan) == counts


@pytest.mark.parametrize(
    ("topology", "width"),
    # The compilers of v3, v4 and v5p treat narrower matrices differently.
    [("v3:4x8", 512), ("v4:4x4x4", 512), ("v5e:8x8", 256), ("v5p:4x4x4", 512), ("v6e:8x8", 256)],
)
class TestGradients:
    pytestmark = needs_compiler

    def test_they_are_cut_where_they_are_summed(self, topology, width, capsys):
        """On 64 devices, only biases, norms and metrics are all-reduced."""
        rows = {"sequence_length": 32, "steps": 900_000, "global_batch_size": 256}
        changes = {
            "model.num_hidden_layers": 2,
            "model.hidden_size": width,
            "model.num_attention_heads": width // 64,
            "model.intermediate_size": 4 * width,
            "model.vocab_size": 30 * width + 1,  # not a multiple of 64 devices
            "phases": json.dumps([rows]),
        }
        arguments = ["plan", "bert_large", "--topology", topology, "--json"]
        for name, value in changes.items():
            arguments += ["--set", f"{name}={value}"]
        assert main(arguments) == 0
        (phase,) = json.loads(capsys.readouterr().out)["phases"]
        found: dict[str, int] = collections.Counter()
        for traffic in phase["collectives"]:
            found[traffic["kind"]] += traffic["bytes"]
        weights = 2 * phase["memory"]["weights"] * 64 / 4  # in bfloat16
        assert found["all-reduce"] < 4000 * width  # the positions take half of it
        assert found["reduce-scatter"] < 1.2 * weights and found["all-gather"] < 1.2 * weights


@pytest.mark.parametrize("topology", ["v4:4x4x4", "v5e:8x8"])
class TestContrastive:
    pytestmark = needs_compiler

    def test_nothing_is_communicated_for_each_microbatch(self, topology, capsys):
        """On 64 devices, vectors are gathered once, and gradients are summed once."""
        width, rows = 128, {"sequence_length": 16, "steps": 20_000, "global_batch_size": 512}
        changes = {
            "model.num_hidden_layers": 2,
            "model.hidden_size": width,
            "model.num_attention_heads": 2,
            "model.intermediate_size": 4 * width,
            "optimizer.gradient_accumulation_steps": 4,
            "phases": json.dumps([rows]),
        }
        arguments = ["plan", "embed_titles_64core", "--topology", topology, "--json"]
        for name, value in changes.items():
            arguments += ["--set", f"{name}={value}"]
        assert main(arguments) == 0
        plan = json.loads(capsys.readouterr().out)
        found: dict[str, int] = collections.Counter()
        for each in plan["phases"][0]["collectives"]:
            found[each["kind"]] += each["bytes"]
            if each["kind"] == "all-gather" and each["group_size"] == 64:
                found["gathered by all"] += each["bytes"]
        weights = 2 * plan["parameters"]  # in bfloat16
        vectors = 4 * width * rows["global_batch_size"]
        assert vectors <= found["gathered by all"] < 1.2 * vectors
        assert found["reduce-scatter"] + found["all-reduce"] < 1.3 * weights + 1.2 * vectors


@pytest.mark.parametrize(
    "name",
    # Larger slices are multiples of these.
    [name for name in _launched() if topologies.parse(name).devices <= 64],
)
class TestTensor:
    pytestmark = needs_compiler

    def test_every_slice_can_be_cut_by_it(self, name):
        topologies.prepare_environment()
        topology = topologies.parse(name)
        devices = topologies.devices(topology)
        for tensor in (1, 2, 4, 8):
            if topology.devices % tensor == 0:
                mesh = sharding.make_mesh(fsdp=-1, tensor=tensor, devices=devices)
                assert set(mesh.devices.flat) == set(devices)
                first, inner = mesh.shape["fsdp"], mesh.shape["fsdp_inner"]
                assert first >= inner and first * inner * tensor == topology.devices


class TestMemory:
    pytestmark = needs_compiler

    def test_a_step_that_does_not_fit_is_rejected_with_sizes_and_a_fix(self, capsys):
        # Scores of a million words: many short rows would take the compiler four times as long.
        plan = _plan(
            capsys, "v2:2x2", "--set", "phases.0.global_batch_size=2048",
            "--set", "phases.0.sequence_length=16", "--set", "model.vocab_size=1048576", code=2,
        )  # fmt: skip
        (phase,) = plan["phases"]
        assert phase["memory_bytes"] > phase["available_bytes"] == int(7.48 * 2**30)
        assert "--set optimizer.gradient_accumulation_steps=" in phase["remedy"]
        assert plan["total_hours"] is None

    def test_a_batch_that_does_not_divide_is_rejected(self, capsys):
        arguments = ["plan", "tiny_docs_cpu", "--topology", "v3:2x2"]
        assert main([*arguments, "--set", "phases.0.global_batch_size=20"]) == 2
        assert "phases.0.global_batch_size is 20" in (error := capsys.readouterr().err)
        assert "16 or 24" in error


@pytest.mark.parametrize("generation", CHIPS)
class TestGenerations:
    pytestmark = needs_compiler

    def test_its_compiler_accepts_the_options_and_has_the_memory_of_the_table(self, generation):
        chip = CHIPS[generation]
        topologies.prepare_environment()
        topology = topologies.parse(f"{generation}:2x2{'x1' if chip.dimensions == 3 else ''}")
        devices = topologies.devices(topology)
        assert devices[0].device_kind == chip.device_kind
        mesh = jax.make_mesh((len(devices),), ("x",), devices=devices)
        lie = jax.NamedSharding(mesh, jax.P("x"))
        huge = jax.ShapeDtypeStruct((2**20 * len(devices), 2**18), jax.numpy.bfloat16, sharding=lie)
        lowered = jax.jit(lambda a: a + jax.numpy.sin(a).sum()).trace(huge)
        options: Any = compiler_options.for_platform("tpu")
        with pytest.raises(Exception, match="RESOURCE_EXHAUSTED") as caught:
            lowered.lower(lowering_platforms=("tpu",)).compile(compiler_options=options)
        refusal = compile.error_of(caught.value, chip, "step")
        assert isinstance(refusal, compile.DoesNotFit)
        assert refusal.available == chip.compiler_bytes

    def test_its_compiler_accepts_the_flags_of_the_launcher(self, generation):
        """As options of one compilation; one that no compiler knows is an error."""
        topologies.prepare_environment()
        chip = CHIPS[generation]
        topology = topologies.parse(f"{generation}:2x2{'x1' if chip.dimensions == 3 else ''}")
        devices = topologies.devices(topology)
        mesh = jax.make_mesh((len(devices),), ("x",), devices=devices)
        lie = jax.NamedSharding(mesh, jax.P("x"))
        rows = jax.ShapeDtypeStruct((8 * len(devices), 128), jax.numpy.bfloat16, sharding=lie)
        whole = jax.NamedSharding(mesh, jax.P())

        def gather(a):
            return jax.numpy.sin(a).sum() + jax.sharding.reshard(a, whole)

        lowered = jax.jit(gather).trace(rows).lower(lowering_platforms=("tpu",))
        flags = [
            row["flag"]
            for row in _launch_table("flags")
            if generation in row["generation"].split(",")
        ]
        options: Any = dict(flag.removeprefix("--").split("=") for flag in flags)
        assert options
        lowered.compile(compiler_options=options | compiler_options.for_platform("tpu"))
        with pytest.raises(Exception, match="xla_tpu_no_such_flag"):
            lowered.compile(compiler_options=options | {"xla_tpu_no_such_flag": "true"})
