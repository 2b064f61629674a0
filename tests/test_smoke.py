"""`make smoke`: what the script says of a command that fails, with a fake `bert-jax`.

The real one is too long for a test, and does nothing that the other tests do not.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax import config_loader
from tests.limits import HUNG
from tests.paths import ROOT

_ROOT = ROOT
_SCRIPT = _ROOT / "examples" / "smoke.sh"
_SAVED = """echo '{"event": "save", "time": 1.5, "step": 100}' >>events.jsonl
    echo '{"step": 130, "loss": 1.5, "steps": 10}' >>metrics.jsonl"""
_ROW = 'printf "%s\\n" "┃ probability ┃ token ┃" "│ 0.9 │ {} │" "│ 0.1 │ no │" "│ 0.0 │ no │"'
# What each verb does, in the directory of the smoke test.
_GOOD = {
    "prepare": """mkdir corpus && echo '  "unigram_entropy_nats": 3.5,' >corpus/corpus.json""",
    "doctor": "echo '17 passed, 2 warned, 0 failed, in 9 s'",
    "first": f"{_SAVED}; exec sleep 60",
    "second": """echo '{"event": "resume", "time": 2.5, "step": 100}' >>events.jsonl""",
    "evaluate": """echo '  "mlm_loss": 0.5,'""",
    "export": "mkdir export",
    "fill-mask": f"{_ROW.format('honey')}; {_ROW.format('bread')}",
}


def environment(place: Path, **changed: str) -> dict[str, str]:
    """All that the script sees of the machine; puts the fake on its PATH."""
    verbs = _GOOD | {name.replace("_", "-"): code for name, code in changed.items()}
    program = place / "bin" / "bert-jax"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
cd "$TMPDIR"/bert-jax-smoke.*
case $1 in
pretrain)
    mkdir -p workdir && cd workdir
    if [ ! -f metrics.jsonl ]; then {verbs["first"]}
    else {verbs["second"]}
    fi ;;
prepare) {verbs["prepare"]} ;;
doctor) {verbs["doctor"]} ;;
evaluate) {verbs["evaluate"]} ;;
export) {verbs["export"]} ;;
fill-mask) {verbs["fill-mask"]} ;;
esac
""",
        encoding="utf-8",
    )
    program.chmod(0o755)
    (place / "tmp").mkdir()
    return {"PATH": "/usr/bin:/bin", "BIN": str(program.parent), "TMPDIR": str(place / "tmp")}


def smoke(place: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_SCRIPT], env=environment(place, **changed), cwd=place, capture_output=True, text=True
    )


def test_what_passes_says_each_step_and_leaves_nothing(tmp_path):
    done = smoke(tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    _, *steps, last = done.stdout.splitlines()
    assert [line.split(": ")[1] for line in steps] == [
        "prepare", "doctor", "pretrain", "resume", "evaluate", "export", "fill-mask",
    ]  # fmt: skip
    assert all(line.endswith(" s)") for line in steps)
    assert last.startswith("smoke: passed in ")
    assert list((tmp_path / "tmp").iterdir()) == []


_EARLY = "before it could be killed"


@pytest.mark.parametrize(
    ("step", "reason", "changed"),
    [
        ("prepare", "exit code 7", {"prepare": "exit 7"}),
        ("doctor", "exit code 4", {"doctor": "echo '1 failed'; exit 4"}),
        ("pretrain", "exit code 5", {"first": "exit 5"}),
        ("pretrain", _EARLY, {"first": "true"}),
        ("pretrain", _EARLY, {"first": "echo '{\"step\": 90, \"loss\": 1}' >metrics.jsonl"}),
        ("resume", "exit code 6", {"second": "exit 6"}),
        ("resume", "from the beginning", {"second": "true"}),
        ("evaluate", "exit code 4", {"evaluate": "exit 4"}),
        ("evaluate", "3.6, is not below", {"evaluate": "echo '  \"mlm_loss\": 3.6,'"}),
        ("evaluate", "none, is not below", {"evaluate": "echo '  \"mlm_loss\": NaN,'"}),
        ("export", "exit code 2", {"export": "exit 2"}),
        ("fill-mask", "exit code 3", {"fill_mask": "exit 3"}),
        ("fill-mask", "'honey cloth'",
         {"fill_mask": f"{_ROW.format('honey')}; {_ROW.format('cloth')}"}),
        ("fill-mask", "''", {"fill_mask": "true"}),
    ],
)  # fmt: skip
def test_what_fails_is_named_with_its_log(tmp_path, step, reason, changed):
    done = smoke(tmp_path, **changed)
    assert done.returncode == 1
    assert "passed in" not in done.stdout
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"smoke: failed at {step}: ") and reason in last
    assert Path(last.rpartition("; see ")[2]).is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_child(tmp_path, number):
    waits = "echo $$ >../../../pid; exec sleep 60"
    # A shell that began in the background ignores an interrupt, and so do its children. Python puts
    # that right and becomes the script: `preexec_fn` would fork a process in which jax is running.
    heard = "import os, signal, sys; signal.signal(int(sys.argv[1]), signal.SIG_DFL); "
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            heard + "os.execv(sys.argv[2], sys.argv[2:])",
            str(int(number)),
            _SCRIPT,
        ],
        env=environment(tmp_path, first=waits),
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + HUNG
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=HUNG)
    assert process.returncode == 128 + number and "interrupted at pretrain" in said
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_directory_of_ones_own_must_be_empty(tmp_path):
    (tmp_path / "mine").write_text("mine")
    done = subprocess.run([_SCRIPT, tmp_path], env=environment(tmp_path), capture_output=True)
    assert done.returncode == 2 and b"is not empty" in done.stderr
    assert (tmp_path / "mine").read_text() == "mine"


def test_its_config_and_text_are_there():
    config = config_loader.load_config(str(_SCRIPT.parent / "smoke" / "config.py"))
    assert config.name not in config_loader.shipped_names()
    assert config.checkpoint.every_steps * 3 < config.total_steps
    script = _SCRIPT.read_text()
    for name, words in (("animals", "bear eats honey"), ("trades", "baker makes bread")):
        assert words in (_SCRIPT.parent / "smoke" / f"{name}.txt").read_text()
        assert words.rpartition(" ")[0] in script
