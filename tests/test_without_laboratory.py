"""The core imports, trains and exports without the laboratory, `bert_jax_lab`."""

import dataclasses
import json
import subprocess
import sys

from bert_jax.config import OptimizerConfig, PhaseConfig
from tests import tiny_corpus
from tests.paths import ROOT

_CODE = """
import json, sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "bert_jax_lab":
            raise ImportError(f"{name} is blocked")


sys.meta_path.insert(0, Blocked())
from bert_jax.__main__ import main

for words in json.loads(sys.argv[1]):
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    print("code", code, *words[:2], flush=True)
assert not [name for name in sys.modules if name.startswith("bert_jax_lab")]
"""


def test_the_core_works_without_the_laboratory(tmp_path):
    phase = PhaseConfig(sequence_length=32, steps=3, global_batch_size=8, max_predictions=5)
    model = dataclasses.replace(tiny_corpus.tiny_config().model, num_hidden_layers=1)
    config = tiny_corpus.tiny_config(
        model=model, phases=(phase,), optimizer=OptimizerConfig(warmup_steps=1)
    )
    named = str(tiny_corpus.write_config(tmp_path / "tiny.json", config))
    text = str(tiny_corpus.write(tmp_path / "text.txt"))
    corpus, run = str(tmp_path / "corpus"), str(tmp_path / "run")
    again = ["pretrain", named, "--corpus", corpus, "--workdir", f"{run}2"]
    prepared = ["--vocab-size", "240", "--validation-fraction", "0.1"]
    commands = [
        ["--help"],
        ["prepare", "--source", text, "--output-dir", corpus, *prepared],
        ["pretrain", named, "--corpus", corpus, "--workdir", run],
        ["evaluate", run],
        ["export", run, "--format", "hf", "--output-dir", str(tmp_path / "export")],
        ["doctor", named],
        [*again, "--set", 'hooks=["expected_curves"]'],
    ]
    done = subprocess.run(
        [sys.executable, "-c", _CODE, json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    codes = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("code ")]
    assert codes == ["0", "0", "0", "0", "0", "2", "2"], done.stdout + done.stderr
    help_ = done.stdout[: done.stdout.index("code ")]
    assert "\n  pretrain " in help_ and "doctor" not in help_
    assert "held-out" in done.stdout and "as expected" not in done.stdout
    assert "expected_curves" in done.stderr and "part of bert_jax_lab" in done.stderr
    assert "'doctor' is part of bert_jax_lab, which is not installed" in done.stderr
