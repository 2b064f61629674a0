"""Runs the commands of a page of documentation from top to bottom, with smaller sizes."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from bert_jax.__main__ import main
from bert_jax.cli.usage import command_parser, parse
from tests import tiny_corpus
from tests.paths import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
# Other programs, which need a network, a cloud or an environment. Their commands are not run.
_OTHERS = (
    "pip", "uv", "python", "hf", "gcloud", "launch/tpu", "./tpu_setup.sh", ".", "cat", "make",
)  # fmt: skip


def _phases(**phase: float) -> str:
    return f"phases={json.dumps([phase])}"


_SMALL = (
    "compute.dtype=float32", "evaluation.num_examples=64", "evaluation.batch_size=16",
    "evaluation.every_steps=40", "log_every_steps=5", "optimizer.learning_rate=5e-3",
    "optimizer.warmup_steps=5",
)  # fmt: skip
# Further `--set` for each config. A model that continues a checkpoint has the size of the latter.
_SIZES = {
    "modern_small": (
        *_SMALL, "model.vocab_size=512", "model.num_hidden_layers=2", "model.hidden_size=32",
        "model.intermediate_size=48", "model.num_attention_heads=2",
        "optimizer.gradient_accumulation_steps=1",
        _phases(sequence_length=64, steps=120, global_batch_size=16, masked_lm_prob=0.3),
    ),
    "bert_base": (*_SMALL, _phases(sequence_length=48, steps=80, global_batch_size=16)),
}  # fmt: skip


class Ran(NamedTuple):
    """A command of bert-jax as it was run, and what it printed."""

    words: list[str]
    out: str


def write_parquet(folder: Path) -> None:
    """Writes two files of short stories, with one document per row in the column `text`."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir()
    for number in range(2):
        texts = tiny_corpus.documents(number=150, seed=number)
        parquet.write_table(pyarrow.table({"text": texts}), folder / f"part-{number}.parquet")


def blocks(page: Path, language: str = "bash") -> list[str]:
    """Returns the code blocks of that language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands_of(page: Path) -> list[str]:
    """Returns the commands of a page, each as one line; a here-document keeps its lines."""
    found = []
    for block in blocks(page):
        found += re.findall(r".*<<'END'\n(?:.*\n)*?END\n|(?:.*\\\n)*.*\n", block)
    joined = (re.sub(r"\\\n\s*", " ", command).strip() for command in found)
    return [command for command in joined if command and not command.startswith("#")]


def run_commands(
    lines: Sequence[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    replaced: Mapping[str, str] | None = None,
    parsed_only: Sequence[str] = (),
) -> list[Ran]:
    """Runs commands in the current directory; each has to end with exit code 0.

    `replaced` has texts that are exchanged in each command, and `parsed_only` texts of commands
    that are only parsed. Without the package wandb, `--tracker wandb` is left out.
    """
    ran = []
    for line in lines:
        for old, new in (replaced or {}).items():
            line = line.replace(old, new)
        program, *words = shlex.split(line, comments=True)
        if program == "export":
            monkeypatch.setenv(*words[0].split("=", 1))
        elif program == "printf":
            subprocess.run(["bash", "-c", line], check=True)
        elif program != "bert-jax":
            assert program in _OTHERS, f"{line}: neither run nor known"
        elif any(text in line for text in parsed_only):
            parse(command_parser(), words)
        else:
            if not importlib.util.find_spec("wandb") and "--tracker" in words:
                at = words.index("--tracker")
                del words[at : at + 2]
            if words[0] in ("pretrain", "doctor") and words[1:]:
                words += [f"--set={each}" for each in _SIZES[words[1]]]
            ran.append(Ran(words, _printed(words, capsys)))
    return ran


def _printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Returns what a command of bert-jax prints. Its exit code has to be 0."""
    if words[0] == "doctor":  # which ends its process where a step still compiles
        command = [sys.executable, "-m", "bert_jax", *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        capsys.readouterr()
        code = main(words)
        out, err = capsys.readouterr()
    assert code == 0, (words, out, err)
    return out
