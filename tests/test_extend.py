"""The files of examples/extend/: each adds to the system what it did not know, from outside."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest

import bert_jax
from bert_jax.__main__ import main
from bert_jax.config_loader import execute
from tests.paths import ROOT
from tests.states import arrays_of, assert_same_bits

_EXTEND = ROOT / "examples" / "extend"
_FILES = sorted(_EXTEND.glob("*.py"))
_CONFIGS = [path for path in _FILES if path.stem != "task"]
each_config = pytest.mark.parametrize("path", _CONFIGS, ids=lambda p: p.stem)

_SMALL = [
    "model.vocab_size=240", "model.num_hidden_layers=1", "model.hidden_size=32",
    "model.intermediate_size=64",
    "phases=[{\"sequence_length\": 32, \"steps\": 24, \"global_batch_size\": 8, "
    "\"max_predictions\": 5}]",
    "optimizer.warmup_steps=4", "log_every_steps=1", "evaluation.every_steps=12",
    "evaluation.num_examples=16", "evaluation.batch_size=16", "checkpoint.every_steps=8",
]  # fmt: skip
_SET = [word for change in _SMALL for word in ("--set", change)]


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


def _rows(workdir: Path) -> list[dict]:
    timed = {"time", "steps", "step_seconds", "tokens_per_second", "mfu", "data_wait_seconds",
             "examples_per_second"}  # fmt: skip
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]


@each_config
def test_it_trains_is_interrupted_resumes_evaluates_and_reports(
    path, corpus, tmp_path, monkeypatch, capsys
):
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def pretrain(workdir: Path) -> int:
        command = ["pretrain", str(path), "--corpus", str(corpus), "--workdir", str(workdir)]
        return main([*command, *_SET])

    assert pretrain(whole) == 0
    with monkeypatch.context() as patch:
        from bert_jax.runtime.preemption import Preemption

        asked = iter(range(1000))
        patch.setattr(Preemption, "requested", lambda self: next(asked) >= 12)
        assert pretrain(cut) == 42
    assert pretrain(cut) == 0
    events = [json.loads(line) for line in (cut / "events.jsonl").read_text().splitlines()]
    assert [e["step"] for e in events if e["event"] == "resume"] == [12]
    assert _rows(cut) == _rows(whole)
    assert_same_bits(arrays_of(whole, 24), arrays_of(cut, 24))

    capsys.readouterr()
    checked = ["evaluate", "--json", "--checkpoint", str(whole), "--corpus", str(corpus)]
    assert main([*checked, "--extend", str(path)]) == 0
    figures = json.loads(capsys.readouterr().out)
    last = [r for r in _rows(whole) if r.get("split")][-1]
    assert figures["loss"] == pytest.approx(last["loss"], rel=1e-6)
    assert main(["report", str(whole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 24


def test_a_workdir_says_what_it_needs(corpus, tmp_path, capsys, monkeypatch):
    """Nothing in a workdir is executed: without --extend, the name and the option are said."""
    from bert_jax.registry import OBJECTIVES, PARTS

    path, run = _EXTEND / "objective.py", tmp_path / "run"
    command = ["pretrain", str(path), "--corpus", str(corpus), "--workdir", str(run)]
    assert main([*command, *_SET]) == 0
    for table in (OBJECTIVES, PARTS):
        monkeypatch.setattr(table, "_entries", {})
    assert main(["evaluate", "--json", "--checkpoint", str(run), "--corpus", str(corpus)]) == 2
    said = capsys.readouterr().err
    assert "objective is 'token-order'" in said and "--extend" in said


def test_a_kind_of_task(trained, tmp_path, capsys):
    path = _EXTEND / "task.py"
    words = {"food": ("hay", "fish", "honey"), "home": ("stable", "house", "forest")}
    lines = [f"{label}: the {word} of Ada {n}" for n in range(6) for label in words for word in
             words[label]]  # fmt: skip
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text("# LABEL: TEXT\n" + "\n".join(lines) + "\n")
    command = ["finetune", "--extend", str(path), "--task", "topic", "--checkpoint", str(trained)]
    command += ["--train", str(tmp_path / "train.txt"), "--dev", str(tmp_path / "dev.txt")]
    command += ["--workdir", str(tmp_path / "run"), "--length", "16", "--batch-size", "16"]
    command += ["--learning-rate", "3e-3", "--epochs", "16"]
    assert main(command) == 0
    assert main(command) == 0  # finished: only told so
    (tmp_path / "new.txt").write_text("the hay of Ada\nthe stable of Ada\n")
    capsys.readouterr()
    predict = ["predict", "--extend", str(path), "--checkpoint", str(tmp_path / "run")]
    assert main([*predict, "--input", str(tmp_path / "new.txt")]) == 0
    found = [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()]
    assert found == ["food", "home"]
    (tmp_path / "train.txt").write_text("no colon here\n")
    assert main([*command[:-1], "17"]) == 2
    assert "line 1: write it as LABEL: TEXT" in capsys.readouterr().err


def test_what_fails_in_a_file_is_one_line(tmp_path):
    from bert_jax.errors import UsageError

    for text, said in (
        ("x = 1\nraise ValueError('no')\n", "line 2: ValueError: no"),
        ("def config(:\n", "line 1: invalid syntax"),
        ("from bert_jax.config import TrainConfig\nTrainConfig(sed=1)\n", "Did you mean 'seed'"),
    ):
        path = tmp_path / "mine.py"
        path.write_text(text)
        with pytest.raises(UsageError, match=re.escape(said)):
            execute(path)


@pytest.mark.tpu_compiler
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs the TPU compiler: pip install 'bert-jax[plan]'",
)
@each_config
def test_it_is_planned(path, capsys):
    assert main(["plan", str(path), "--topology", "v5e:2x2", "--json", *_SET]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] and plan["phases"][0]["estimated_cycles"] > 0


@pytest.mark.parametrize("field", ["objective", "optimizer.kind", "optimizer.schedule"])
def test_a_verb_does_not_ask_for_what_it_does_not_need(tmp_path, trained, field, capsys):
    """Filling a mask and writing a model need neither optimiser nor objective."""
    workdir = shutil.copytree(trained, tmp_path / "run")
    values = json.loads((workdir / "config.json").read_text())
    section, _, name = field.rpartition(".")
    (values["config"][section] if section else values["config"])[name] = "of-my-own"
    (workdir / "config.json").write_text(json.dumps(values))
    assert main(["fill-mask", "--checkpoint", str(workdir), "The [MASK]."]) == 0
    for format in ("hf", "tf1"):
        output = str(tmp_path / format)
        command = ["export", "--checkpoint", str(workdir), "--format", format, "--output", output]
        assert main(command) == 0, capsys.readouterr().err


_TYPOS = {
    "from bert_jax import TranConfig": ", line 1: ImportError: cannot import name 'TranConfig' "
    "from 'bert_jax'. Did you mean 'TrainConfig'?",
    "from bert_jax import *\ndef config(): return TrainConfg()": ", line 2: NameError: name "
    "'TrainConfg' is not defined. Did you mean 'TrainConfig'?",
    "from bert_jax import TrainConfig\ndef config(): return TrainConfig(sed=1)": ", line 2: "
    "TypeError: TrainConfig.__init__() got an unexpected keyword argument 'sed'. Did you mean "
    "'seed'?",
    "from bert_jax import TrainConfig\ndef config(): return TrainConfig().optimiser": ", line 2: "
    "AttributeError: 'TrainConfig' object has no attribute 'optimiser'. Did you mean 'optimizer'?",
    "from bert_jax import TrainConfig\ndef config(): return TrainConfig(seed='x')": ": seed: "
    "expected int, got 'x'",
    "from bert_jax import TrainConfig\ndef config(): return TrainConfig(model=TrainConfig)": ": a "
    "field holds what no config can: ",
    "def confg(): pass": " must define a function: def config() -> TrainConfig. Did you mean "
    "'confg'?",
}


@pytest.mark.parametrize("source", _TYPOS)
def test_a_typo_in_a_config_is_one_line(tmp_path, source, capsys):
    path = tmp_path / "mine.py"
    path.write_text(source + "\n")
    assert main(["show", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{path}{_TYPOS[source]}" in said
