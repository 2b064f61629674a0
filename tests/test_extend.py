"""The files of examples/extend/: each extends the system from outside with one file.

The built-in mixers and scores pass the same tests of mixers.
"""

import dataclasses
import functools
import importlib.util
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.__main__ import main
from bert_jax.config import ComputeConfig, HeadConfig, PairLoss
from bert_jax.config_loader import load_config
from bert_jax.data.corpus.store import open_corpus
from bert_jax.model import layers
from bert_jax.registry import OBJECTIVES
from bert_jax.training import device_feed
from bert_jax.update.flops import train_flops
from bert_jax.update.state import TrainState
from bert_jax.update.step import train_step
from bert_jax.workdir import run_directory
from bert_jax.workdir.checkpoint import Checkpoints
from tests.batches import mesh_of
from tests.model.test_positions import model_of, packed_and_alone
from tests.models import apply, random_params
from tests.objectives.test_pair_losses import cosine, random_texts, texts
from tests.paths import ROOT
from tests.states import arrays_of, assert_same_bits
from tests.update.test_flops import product_flops

_EXTEND = ROOT / "examples" / "extend"
_FILES = sorted(_EXTEND.glob("*.py"))
_CONFIGS = [path for path in _FILES if path.stem != "task"]
each_config = pytest.mark.parametrize("path", _CONFIGS, ids=lambda p: p.stem)
_BERT = "tiny_docs_cpu"
_STUDY = str(ROOT / "studies" / "extend" / "layer_types.py")
# A config and its overrides.
_OF_STUDY = {
    "convolution": (_STUDY, ["model.mixer=convolution", "model.mixer.conv_kernel_size=5"]),
    "gru": (_STUDY, ["model.mixer=gru"]),
    "dot_product": (_STUDY, ["model.mixer.score=dot_product"]),
    "general": (_STUDY, ["model.mixer.score=general"]),
    "additive": (_STUDY, ["model.mixer.score=additive"]),
}
_MIXERS = {name: (str(_EXTEND / f"{name}.py"), []) for name in ("mixer", "window")} | _OF_STUDY
each_mixer = pytest.mark.parametrize("name", _MIXERS)
# Extensions that add arrays to the saved state, or that observe each step.
_RESUMED = ("hook", "optimizer")

_SMALL = [
    "model.vocab_size=240", "model.num_hidden_layers=1", "model.hidden_size=32",
    "model.intermediate_size=64",
    "phases=[{\"sequence_length\": 32, \"steps\": 24, \"global_batch_size\": 8, "
    "\"max_predictions\": 5}]",
    "optimizer.warmup_steps=4", "log_every_steps=1", "evaluation.every_steps=12",
    "evaluation.num_examples=16", "evaluation.batch_size=16", "checkpoint.every_steps=8",
]  # fmt: skip


def _with(changes: list[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


_SET = _with(_SMALL)


@pytest.mark.parametrize("path", _FILES, ids=lambda p: p.stem)
def test_a_file_is_short_and_the_package_does_not_know_it(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 80
    registered = re.findall(r'\.register\(\s*"([\w-]+)"', path.read_text(encoding="utf-8"))
    assert registered
    package = Path(bert_jax.__file__).parent
    for module in package.rglob("*.py"):
        text = module.read_text(encoding="utf-8")
        assert f"extend/{path.name}" not in text
        assert not any(f'"{name}"' in text for name in registered), module


def test_the_code_of_the_guide_is_that_of_the_files_or_runs():
    page = (ROOT / "docs" / "guides" / "extend.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    whole = [block for block in blocks if re.search("^from ", block, re.MULTILINE)]
    files = "\n".join(path.read_text(encoding="utf-8") for path in _FILES)
    for block in blocks:
        for part in () if block in whole else block.strip().split("\n\n\n"):
            assert part in files
    # In another process: an entry would stay registered here.
    assert subprocess.run([sys.executable, "-c", "\n".join(whole)]).returncode == 0


def _extend(given: str) -> list[str]:
    return ["--extend", given] if given.endswith(".py") else []


def _rows(workdir: Path) -> list[dict]:
    timed = {"time", "steps", "step_seconds", "tokens_per_second", "mfu", "data_wait_seconds",
             "examples_per_second"}  # fmt: skip
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]


@each_config
def test_a_run_trains_resumes_evaluates_and_reports(path, corpus, tmp_path, monkeypatch, capsys):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"

    def pretrain(workdir: Path) -> int:
        command = ["pretrain", str(path), "--corpus", str(corpus), "--workdir", str(workdir)]
        return main([*command, *_SET])

    assert pretrain(whole) == 0
    if path.stem in _RESUMED:
        with monkeypatch.context() as patch:
            from bert_jax.runtime.stop import Preemption

            calls = iter(range(1000))
            patch.setattr(Preemption, "requested", lambda self: next(calls) >= 12)
            assert pretrain(stopped) == 42
        assert pretrain(stopped) == 0
        events = [json.loads(line) for line in (stopped / "events.jsonl").read_text().splitlines()]
        assert [e["step"] for e in events if e["event"] == "resume"] == [12]
        assert _rows(stopped) == _rows(whole)
        assert_same_bits(arrays_of(whole, 24), arrays_of(stopped, 24))

    capsys.readouterr()
    command = ["evaluate", "--json", str(whole), "--corpus", str(corpus)]
    assert main([*command, "--extend", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    last = [r for r in _rows(whole) if r.get("split")][-1]
    assert found["loss"] == pytest.approx(last["loss"], rel=1e-6)
    assert main(["report", str(whole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 24


def test_a_workdir_names_its_extension(corpus, tmp_path, capsys, monkeypatch):
    """Nothing in a workdir is executed: the error without --extend names both."""
    from bert_jax.registry import OBJECTIVES, PARTS

    path, run = _EXTEND / "objective.py", tmp_path / "run"
    command = ["pretrain", str(path), "--corpus", str(corpus), "--workdir", str(run)]
    assert main([*command, *_SET]) == 0
    for table in (OBJECTIVES, PARTS):
        monkeypatch.setattr(table, "_entries", {})
    assert main(["evaluate", "--json", str(run), "--corpus", str(corpus)]) == 2
    said = capsys.readouterr().err
    assert "objective is 'token-order'" in said and "--extend" in said


def test_a_kind_of_task(trained, tmp_path, capsys):
    path = _EXTEND / "task.py"
    words = {"food": ("hay", "fish", "honey"), "home": ("stable", "house", "forest")}
    lines = [f"{label}: the {word} of Ada {n}" for n in range(6) for label in words for word in
             words[label]]  # fmt: skip
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text("# LABEL: TEXT\n" + "\n".join(lines) + "\n")
    command = ["finetune", "--extend", str(path), "--task", "topic", str(trained)]
    command += ["--train", str(tmp_path / "train.txt"), "--dev", str(tmp_path / "dev.txt")]
    command += ["--workdir", str(tmp_path / "run"), "--max-length", "16", "--batch-size", "16"]
    command += ["--learning-rate", "3e-3", "--epochs", "16"]
    assert main(command) == 0
    assert main(command) == 0  # finished: only told so
    (tmp_path / "new.txt").write_text("the hay of Ada\nthe stable of Ada\n")
    capsys.readouterr()
    predict = ["predict", "--extend", str(path), str(tmp_path / "run")]
    assert main([*predict, "--input", str(tmp_path / "new.txt")]) == 0
    found = [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()]
    assert found == ["food", "home"]
    (tmp_path / "train.txt").write_text("no colon here\n")
    assert main([*command[:-1], "17"]) == 2
    assert "line 1: write it as LABEL: TEXT" in capsys.readouterr().err


@pytest.mark.parametrize("shape", [1, 8])
def test_a_loss_is_a_double_loop_on_any_mesh(shape):
    """With two documents for each query, and an example that fills up the batch."""
    load_config(str(_EXTEND / "loss.py"))
    options, values = PairLoss.of_kind("sigmoid")(temperature=0.5, bias=-2.0), random_texts(8, 2)
    values["weights"][7] = 0
    kept, total = range(7), 0.0
    for i, j, c in itertools.product(kept, kept, range(2)):
        logit = cosine(values["queries"][i], values["documents"][j, c]) / 0.5 - 2.0
        total += np.log1p(np.exp(-logit if (i, 0) == (j, c) else logit))
    mesh = mesh_of(shape)

    @jax.jit
    def mean(values):
        (found,) = texts(values)
        return options.mean(found)

    def measured():
        rows = jax.NamedSharding(mesh, jax.P(("slice", "fsdp", "fsdp_inner")))
        with jax.set_mesh(mesh):
            return mean({n: jax.device_put(np.float32(x), rows) for n, x in values.items()})

    assert float(measured()[0]) == pytest.approx(total / 7, rel=1e-5)
    values["documents"][:, 0] = values["queries"]
    assert float(measured()[1]) == 1.0


_FLOAT32 = ComputeConfig(dtype="float32")


@each_mixer
def test_a_mixer_does_not_leak_between_packed_sequences(name):
    """Packed sequences against single sequences, with all outputs and with some."""
    chosen = load_config(*_MIXERS[name]).model
    model = dataclasses.replace(model_of("learned"), num_hidden_layers=2, mixer=chosen.mixer)
    params, arrays = random_params(model, HeadConfig()), packed_and_alone()
    for states in (True, False):
        run = functools.partial(apply, config=model, compute=_FLOAT32, hidden_states=states)
        together, other = run(params, arrays)["mlm_logits"], dict(arrays)
        np.testing.assert_allclose(together[0, :3], together[1, :3], atol=1e-5)
        np.testing.assert_allclose(together[0, 3:], together[2, :3], atol=1e-5)
        other["input_ids"] = arrays["input_ids"].copy()
        other["input_ids"][0, 5:7] += 1
        changed = run(params, other)["mlm_logits"]
        np.testing.assert_array_equal(changed[0, :3], together[0, :3])
        assert np.abs(changed[0, 3:] - together[0, 3:]).max() > 1e-3


@each_mixer
def test_flops_of_a_mixer_are_its_products(name, monkeypatch):
    """The FLOPs are those of the matrix products of the step."""
    # On a CPU the gradient of a bias is a product with ones.
    monkeypatch.setattr(layers, "is_on_cpu", lambda: False)
    given, changes = _MIXERS[name]
    sets = [*_SMALL, "model.num_hidden_layers=2"]
    for is_own in (True, False):
        config = load_config(given, sets + changes) if is_own else load_config(_BERT, sets)
        objective, phase = OBJECTIVES[config.objective], config.phases[0]
        mesh = mesh_of((1, 8, 1))
        with jax.set_mesh(mesh):
            state = TrainState.abstract(config, mesh)
            batch = device_feed.abstract_batch(phase, fields=objective.fields, mesh=mesh)
            jaxpr = jax.make_jaxpr(
                lambda s, b, c=config, o=objective: train_step(s, b, config=c, objective=o)
            )(state, batch)
        read, length = phase.max_predictions + 1, phase.sequence_length
        # Products with one-hot rows of their own: of the outputs, or of each place of a kernel.
        times = 1 + ({"mixer": 1, "gru": 1, "convolution": 5}.get(name, 0) if is_own else 0)
        picked = 2 * times * read * length * config.model.hidden_size
        closed = train_flops(objective, config.model, phase)
        if is_own and name == "additive":
            # Its sum over columns is a loop, and instead of queries and keys one column of zeros is
            # multiplied, which has no gradient.
            per_column = 2 * (length + read) * length * config.model.num_attention_heads
            size = config.model.hidden_size // config.model.num_attention_heads
            closed -= phase.global_batch_size * (3 * size - 1) * per_column
        assert product_flops(jaxpr.jaxpr) - closed == 2 * phase.global_batch_size * picked


@each_mixer
def test_a_mixer_is_shown_and_exported_or_refused(name, corpus, tmp_path, capsys):
    (given, changes), run = _MIXERS[name], str(tmp_path / "run")
    config = load_config(given, [*_SMALL, *changes])
    run_directory.create(tmp_path / "run", config, open_corpus(corpus), init_from=None)
    saved = Checkpoints(tmp_path / "run", config.checkpoint)
    saved.save(TrainState.initial(config, mesh_of(1)), step=1)
    saved.close()
    ask = [run, *_extend(given)]
    shown = main(["attention", *ask, "--json", "the house of Ada " * 5])
    told = capsys.readouterr()
    if name == "window":
        assert shown == 0
        weights = np.array(json.loads(told.out)["layers"][0]["heads"][0]["weights"])
        far = np.abs(np.subtract.outer(*[np.arange(len(weights))] * 2)) > 8
        assert len(weights) > 9 and not weights[far].any() and weights[~far].all()
    elif name in ("dot_product", "general"):
        assert shown == 0 and json.loads(told.out)["layers"][0]["heads"][0]["weights"]
    else:
        chosen = load_config(given, changes).model
        refused = f"model.mixer is {chosen.mixer.kind}: it has no attention"
        if name == "additive":
            refused = "model.mixer.score is additive: only dot products"
        assert shown == 2
        assert refused in told.err and told.err.count("\n") == 1
    out = str(tmp_path / "out")
    assert main(["export", *ask, "--format", "hf", "--output-dir", out]) == 2
    told = capsys.readouterr()
    assert "which this format does not support" in told.err and told.err.count("\n") == 1


@pytest.mark.tpu_compiler
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs the TPU compiler: the extra `plan`",
)
@each_config
def test_it_is_planned(path, capsys):
    command = ["plan", str(path), "--topology", "v5e:2x2", "--json", *_SET]
    assert main(command) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] and plan["phases"][0]["cycles"] > 0
    if path.stem == "optimizer":  # the compilation cache does not change the result
        assert main(command) == 0
        again = json.loads(capsys.readouterr().out)["phases"][0]["cycles"]
        assert again == plan["phases"][0]["cycles"]


@pytest.mark.parametrize("field", ["objective", "optimizer.kind", "optimizer.schedule"])
def test_verbs_ignore_unknown_optimizers_and_objectives(tmp_path, trained, field, capsys):
    """`fill-mask` and `export` need neither optimizer nor objective."""
    workdir = shutil.copytree(trained, tmp_path / "run")
    values = json.loads((workdir / "config.json").read_text())
    section, _, name = field.rpartition(".")
    (values["config"][section] if section else values["config"])[name] = "of-my-own"
    (workdir / "config.json").write_text(json.dumps(values))
    assert main(["fill-mask", str(workdir), "The [MASK]."]) == 0
    for format in ("hf", "tf1"):
        output = str(tmp_path / format)
        command = ["export", str(workdir), "--format", format, "--output-dir", output]
        assert main(command) == 0, capsys.readouterr().err


_RETURN = "from bert_jax import TrainConfig\ndef config(): return "
_TYPOS = {
    "from bert_jax import TranConfig": "line 1: ImportError: ",
    "def config(:": "line 1: invalid syntax",
    f"{_RETURN}TrainConfig(sed=1)": "unexpected keyword argument 'sed'",
    f"{_RETURN}TrainConfig(seed='x')": "seed: expected int",
    "def confg(): pass": "def config() -> TrainConfig",
}


@pytest.mark.parametrize("source", _TYPOS)
def test_an_error_in_a_config_is_one_line(tmp_path, source, capsys):
    path = tmp_path / "mine.py"
    path.write_text(source + "\n")
    assert main(["config", "show", str(path)]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and str(path) in printed and _TYPOS[source] in printed
