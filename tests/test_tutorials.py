"""The README and the tutorials run from top to bottom as they are written, with smaller sizes.

`make test` has no network, GPU, cloud or PyTorch. The launch commands run against a fake cloud in
tests/launch/test_tutorial.py, and the vectors are compared with sentence-transformers in
tests/parity/test_tutorial.py.
"""

import json
import random
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_jax import config_loader
from bert_jax.cli.usage import command_parser
from tests import tiny_corpus
from tests.pages import TUTORIALS, commands_of, run_commands, write_parquet
from tests.paths import ROOT

_CHECKPOINT = "bert-base-uncased"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function that runs commands in an empty directory and returns what each prints."""
    monkeypatch.chdir(tmp_path)
    return lambda lines, **options: run_commands(lines, capsys, monkeypatch, **options)


def losses(workdir: str, split: str = "train") -> list[float]:
    """Returns the masked-LM losses that a run logged, in the order of its steps."""
    rows = map(json.loads, Path(workdir, "metrics.jsonl").read_text().splitlines())
    return [row["mlm_loss"] for row in rows if row.get("split", "train") == split]


def test_own_corpus_on_one_gpu_and_the_readme(run):
    """The commands of the README, which the tutorial shares, run in the directory of the latter."""
    write_parquet(Path("data"))
    lines = commands_of(TUTORIALS / "own-corpus-gpu.md")
    run(lines)
    assert losses("runs/mine")[-1] < losses("runs/mine")[0] - 1
    with np.load("vectors.npz") as saved:
        assert saved["vectors"].shape == (2, 32)
        np.testing.assert_allclose(np.linalg.norm(saved["vectors"], axis=1), 1, atol=1e-5)
    assert Path("my-encoder/modules.json").is_file()
    assert "</html>" in Path("runs/report.html").read_text(encoding="utf-8")
    # The second `pretrain` found a complete run.
    events = map(json.loads, Path("runs/mine/events.jsonl").read_text().splitlines())
    assert [event["step"] for event in events if event["event"] == "save"] == [120]

    shutil.rmtree("my-encoder")
    done = [shlex.split(line, comments=True) for line in lines]
    of_readme = commands_of(ROOT / "README.md")
    others = [line for line in of_readme if shlex.split(line, comments=True) not in done]
    assert [line.split()[1] for line in of_readme if line.startswith("bert-jax")] == [
        "prepare", "doctor", "pretrain", "export",
    ]  # fmt: skip
    run(others)
    assert Path("my-encoder/modules.json").is_file()


# --- a published checkpoint, continued ------------------------------------------------------------


def write_domain(folder: Path) -> None:
    """Writes texts that share the letters of the stories, and hardly a word."""
    folder.mkdir()
    draw = random.Random(0)
    who, what, how = (
        ("court", "tenant", "seller"),
        ("contract", "deed", "claim"),
        ("state", "local"),
    )
    acts = ("signs", "contests", "reads")

    def sentence() -> str:
        one, act, other, law = map(draw.choice, (who, acts, what, how))
        return f"The {one} {act} the {other} under {law} law."

    texts = [" ".join(sentence() for _ in range(8)) for _ in range(300)]
    (folder / "law.txt").write_text("\n\n".join(texts), encoding="utf-8")


def losses_of(out: str) -> list[float]:
    """Returns the losses that `evaluate` printed, in the order of the checkpoints."""
    return [float(loss) for loss in re.findall(r"MLM loss\s*│\s*([\d.]+) nats", out)]


def test_a_checkpoint_continues_on_domain_text(run, exported):
    """`exported` was trained on stories, which are the general text here."""
    shutil.copytree(exported, _CHECKPOINT)
    write_domain(Path("domain"))
    Path("general").mkdir()
    tiny_corpus.write(Path("general/stories.txt"), number=80, seed=1)
    printed = run(
        commands_of(TUTORIALS / "continue-pretraining.md"),
        parsed_only=("answerdotai/ModernBERT-base",),
    )
    found = {shlex.join(words): losses_of(out) for words, out in printed if words[0] == "evaluate"}
    both = f"evaluate {_CHECKPOINT} runs/adapted --corpus runs/"
    (domain_before, domain_after), (general_before, general_after) = (
        found[f"{both}{corpus}"] for corpus in ("domain", "general")
    )
    assert domain_after < domain_before - 1
    assert general_after > general_before + 0.2  # it forgets
    _, general_mixed = found[f"evaluate {_CHECKPOINT} runs/mixed --corpus runs/general"]
    assert general_mixed < general_after - 0.2
    assert losses("runs/adapted", "validation")[0] == pytest.approx(domain_before, abs=1e-3)


@pytest.mark.parametrize(
    ("config", "steps", "warmup", "rate"),
    [("bert_base", 12_500, 750, 1e-4), ("modernbert_base", 6_000, 360, 1e-4)],
)
def test_the_settings_for_a_published_checkpoint(config, steps, warmup, rate):
    """As written, without smaller sizes: the config's own million steps must not be inherited."""
    lines = commands_of(TUTORIALS / "continue-pretraining.md")
    words = [shlex.split(line)[1:] for line in lines if f"pretrain {config} " in line]
    for arguments in map(command_parser().parse_args, words):
        resolved = config_loader.load_config(arguments.config, arguments.overrides)
        assert (resolved.total_steps, resolved.optimizer.warmup_steps) == (steps, warmup)
        assert resolved.optimizer.learning_rate == rate
        assert resolved.optimizer.schedule.kind == "bert_linear"  # which ends at 0
    assert len(words) == (2 if config == "bert_base" else 1)


# --- a TPU VM -------------------------------------------------------------------------------------


def test_eight_chips_of_one_machine(run, eight_devices):
    """Runs the commands for the VM and the export; a folder stands for the bucket."""
    write_parquet(Path("data"))
    lines = [
        line
        for line in commands_of(TUTORIALS / "tpu.md")
        if re.match("bert-jax (prepare|pretrain|export) ", line)
    ]
    assert len(lines) == 3
    run(lines, replaced={"gs://my-bucket/runs/vm": "results"})
    assert losses("results")[-1] < losses("results")[0] - 1
    start, *_ = Path("results/events.jsonl").read_text().splitlines()
    assert json.loads(start)["devices"] == 8
