"""Ctrl-C, SIGTERM and a closed terminal at many stages of the long verbs.

The command prints one line, exits with the documented code within two seconds or a step, loses
nothing, and resumes when it is repeated.

BERT_JAX_CHAOS=long python -m pytest tests/chaos/test_signals.py -rP
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.config import CheckpointConfig, EvaluationConfig, OptimizerConfig, PhaseConfig
from bert_jax.workdir import checkpoint
from tests import tiny_corpus, tiny_tasks
from tests.chaos import IS_LONG
from tests.chaos.runs import ROOT, losses
from tests.limits import HUNG

pytestmark = pytest.mark.chaos

# Other tests share the cores in the short form.
_SECONDS = 2.0 if IS_LONG else 6.0
_ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
_CODES = {signal.SIGINT: 130, signal.SIGTERM: 42, signal.SIGHUP: 42}
_LINE = re.compile(r"interrupted|received SIGTERM|the terminal was closed \(SIGHUP\)")
# A process that needs more than a second prints this line first.
_WAITS = "saving and ending after"
# (verb, stage) -> the fault that makes the stage last, and the text about what is kept.
_PREPARE = "bert_jax.data.corpus"
_PARTS, _NOTHING = "the same command resumes with the parts", "nothing was saved"
_RUNS = "runs that have ended are kept"
_NOT_YET = r"nothing was saved yet|nothing is lost"
_MOMENTS = {
    ("prepare", "import"): ("say=numpy", _PARTS),
    ("prepare", "read"): (f"at={_PREPARE}.decide:assign:1", _PARTS),
    ("prepare", "tokenizer"): (f"at={_PREPARE}.vocabulary:train:1", _PARTS),
    ("prepare", "encode"): (f"at={_PREPARE}.decide:begun:1", _PARTS),
    ("prepare", "join"): (f"at={_PREPARE}.shards:cut:1", _PARTS),
    ("pretrain", "import"): ("say=import", _NOT_YET),
    ("pretrain", "begin"): ("at=bert_jax.training.run:_restore:5", _NOT_YET),
    ("pretrain", "compile"): ("say=compile", _NOT_YET),
    ("pretrain", "first"): (
        "at=bert_jax.training.compiled_steps:CompiledSteps.__call__:60",
        _NOT_YET,
    ),
    ("pretrain", "step"): ("at=bert_jax.training.loop:_next_batch:0.3", r"step \d+ is saved|yet"),
    ("pretrain", "evaluate"): (
        "at=bert_jax.training.evaluate:HeldOut.run:1",
        r"step \d+ is saved",
    ),
    ("pretrain", "close"): ("at=bert_jax.training.run:_close:0.5", ""),
    ("finetune", "rows"): ("at=bert_jax.tasks.sweep:load_task:5", _NOT_YET),
    ("finetune", "step"): ("task-step=0.3", r"step \d+ is saved|yet"),
    ("finetune", "evaluate"): (
        "at=bert_jax.tasks.finetune:TaskEvaluation.run:1",
        r"step \d+ is saved",
    ),
    ("study", "import"): ("say=import", _RUNS),
    ("study", "run"): ("at=bert_jax_lab.studies.run:Children.run:0", "resumes the study"),
    ("study", "table"): ("at=bert_jax_lab.studies.result:write:5", _RUNS),
    ("report", "import"): ("say=numpy", _NOTHING),
    ("report", "words"): ("at=bert_jax_lab.probes.hidden_words:hidden_words:5", _NOTHING),
    ("report", "page"): ("at=bert_jax_lab.reports.report_page:render:5", _NOTHING),
}
_SAMPLE = {
    ("prepare", "encode", signal.SIGINT),
    ("pretrain", "compile", signal.SIGHUP),
    ("finetune", "evaluate", signal.SIGINT),
    ("report", "words", signal.SIGTERM),
}
_CASES = [
    (*key, number) for key in _MOMENTS for number in _CODES if IS_LONG or (*key, number) in _SAMPLE
]
_STUDY = """
from bert_jax_lab.studies.study import Study, Variant

def study():
    return Study(title="Signals", base="tiny.json", variants=(Variant("sound"),))
"""


@pytest.fixture(scope="module")
def files(shared, finished) -> Path:
    def fill(directory: Path) -> None:
        text = "\n\n".join(tiny_corpus.documents(number=400))
        (directory / "text.txt").write_text(text, encoding="utf-8")
        config = tiny_corpus.tiny_config(
            phases=(PhaseConfig(sequence_length=32, steps=12, global_batch_size=16),),
            optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=2),
            evaluation=EvaluationConfig(every_steps=6, num_examples=16, batch_size=16),
            checkpoint=CheckpointConfig(every_steps=4, keep_last=1),
            log_every_steps=1,
        )
        tiny_corpus.write_config(directory / "tiny.json", config)
        (directory / "mine.py").write_text(_STUDY, encoding="utf-8")
        tiny_tasks.sst2(directory / "sst2")

    return shared("signals", fill)


def command(verb: str, files: Path, output: Path, corpus: Path, finished: Path) -> list[str]:
    there = ["--corpus", str(corpus), "--workdir", str(output)]
    return {
        "prepare": [
            *("prepare", "--source", str(files / "text.txt"), "--output-dir", str(output)),
            *("--vocab-size", "200", "--workers", "2"),
        ],
        "pretrain": ["pretrain", str(files / "tiny.json"), *there],
        "finetune": [
            *("finetune", str(finished), "--task", "sst2", "--epochs", "1"),
            *("--data", str(files / "sst2"), "--workdir", str(output), "--max-length", "24"),
            *("--set", "checkpoint.every_steps=2", "--restarts", "0", "--batch-size", "16"),
        ],
        "study": ["study", str(files / "mine.py"), *there],
        "report": ["report", str(finished), "--html", str(output)],
    }[verb]


def start(words: list[str], log: Path, *faults: str) -> subprocess.Popen:
    with log.open("ab") as said:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": said}
        return subprocess.Popen(faulty(words, *faults), cwd=ROOT, env=_ENVIRONMENT, **streams)


def faulty(words: list[str], *faults: str) -> list[str]:
    return [sys.executable, "-m", "tests.chaos.faulty", *faults, "--", *words]


@pytest.mark.parametrize(("verb", "moment", "number"), _CASES)
def test_a_signal(tmp_path, corpus, finished, files, verb, moment, number):
    fault, kept = _MOMENTS[verb, moment]
    output, log = tmp_path / "output", tmp_path / "log"
    words = command(verb, files, output, corpus, finished)
    process = start(words, log, fault)
    marked, deadline = "chaos: at", time.monotonic() + HUNG
    if fault.startswith("say="):
        marked = "chaos: compile" if moment == "compile" else "chaos: import"
    is_of_rows = fault.startswith("task-step")
    while not (_has_row(output) if is_of_rows else marked in log.read_text()):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    time.sleep(0.1)
    before = len(log.read_text())
    began = time.monotonic()
    process.send_signal(number)
    code = process.wait(120)
    seconds = time.monotonic() - began
    said = log.read_text()[before:]
    print(f"{verb:9} {moment:10} {signal.Signals(number).name:8} {code:4} {seconds:5.2f} s")
    if moment != "close":
        assert code == _CODES[number], said
        lines = [line for line in said.splitlines() if _LINE.search(line) and _WAITS not in line]
        # The run of a study prints it as well.
        assert len(lines) == 1 or verb == "study", said
        assert lines and re.search(kept, lines[-1]), said
    assert "Traceback" not in said and "Error" not in said, said
    if (verb, moment) == ("pretrain", "step"):
        last = json.loads((output / "events.jsonl").read_text().splitlines()[-1])
        asked = ("stop", "Ctrl-C") if number == signal.SIGINT else ("preempt", None)
        assert (last["event"], last.get("reason")) == asked
    assert seconds < _SECONDS + (3 if (verb, moment) == ("study", "run") else 0), said

    if number != signal.SIGINT and IS_LONG:
        return
    assert start(words, log).wait(300) == 0, log.read_text()
    if verb == "prepare":
        assert not (output / ".parts").exists()
        assert json.loads((output / "corpus.json").read_text())["counts"]["total"]["documents"]
    elif verb == "pretrain":
        steps = [step for step, split, *_ in losses(output) if not split]
        assert steps == list(range(1, 13))
    elif verb == "finetune":
        assert (output / "results.json").is_file()
    elif verb == "study":
        assert json.loads((output / "study.json").read_text())["runs"][0]["status"] == "done"
    else:
        assert output.stat().st_size > 10_000


@pytest.mark.parametrize("is_told", [True, False])
def test_a_terminal_that_closes(tmp_path, corpus, finished, files, is_told):
    """A run that gets SIGHUP saves and ends. A background run of a shell gets no signal, and trains
    to its end although its terminal is closed.
    """
    output, log = tmp_path / "output", tmp_path / "log"
    words = command("pretrain", files, output, corpus, finished)
    ours, theirs = os.openpty()
    faults = ["step=0.3", *["terminal=0"] * is_told]
    process = subprocess.Popen(
        faulty(words, *faults),
        cwd=ROOT,
        env=_ENVIRONMENT,
        start_new_session=True,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown, deadline = b"", time.monotonic() + HUNG
    while not _has_row(output):
        assert process.poll() is None and time.monotonic() < deadline, shown
        if select.select([ours], [], [], 0.02)[0]:
            shown += os.read(ours, 4096)
    os.close(ours)
    code = process.wait(120)
    steps = [step for step, split, *_ in losses(output) if not split]
    assert b"\x1b[?25l" in shown, "no bar was drawn"
    if not is_told:
        assert code == 141 and steps == list(range(1, 13))
        assert max(checkpoint.steps(output)) == 12
        return
    assert code == 42 and max(checkpoint.steps(output)) == len(steps) < 12
    assert start(words, log).wait(300) == 0, log.read_text()
    assert f"resuming at step {len(steps)} of 12" in log.read_text()
    assert [step for step, split, *_ in losses(output) if not split] == list(range(1, 13))


def _has_row(workdir: Path) -> bool:
    return (workdir / "metrics.jsonl").exists() and bool((workdir / "metrics.jsonl").read_text())
