"""Writes OUTPUT: small files as commit 03e8697 writes them, for later trees to read and go on with.

    git worktree add ../old 03e8697
    cd ../old && make .venv/.dev
    PYTHONPATH=. .venv/bin/python PATH/TO/make_written_by_03e8697.py OUTPUT

To be run with the code and the environment of commit 03e8697, and with no other: what it writes is
what that commit did, not what is right. One CPU device, no XLA_FLAGS, relative paths throughout:
the one absolute path, which Orbax notes in a step and nobody reads, is made relative at the end.

    platform.json         the machine and the versions; on the same ones every bit is the same
    stories.txt           tests/tiny_corpus.py; `prepare` made corpus/ of it
    tiny.json, workdir/   a run of 40 steps, two phases, that SIGTERM stopped at step 20, before the
                          evaluation that is due there: who goes on owes it
    end/                  what that run came to: the rows that follow (times left out), a SHA-256 of
                          each parameter and moment (of `export --moments yes`), and the parameters
    hf/, tf1/             exports of step 20
    task/, tuned/         a text classification, fine-tuned from step 20 to its end
    predictions.jsonl     what `predict` says of task/dev.csv
    tuned_hf/             its export
    lines.txt             five texts; vectors.npz: `embed --layers=-2,-1` of step 20
    fill_mask.json        candidates for the masked words of two texts, by step 20
"""

import argparse
import csv
import hashlib
import importlib.metadata
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

STOP, END = 20, 40
PREPARE = ("prepare", "--source", "stories.txt", "--output", "corpus", "--vocab-size", "240",
           "--validation-fraction", "0.2", "--workers", "1")  # fmt: skip
PRETRAIN = ("pretrain", "tiny.json", "--corpus", "corpus", "--workdir", "workdir")
FINETUNE = ("finetune", "--checkpoint", "workdir", "--task", "text", "--text", "text",
            "--label", "label", "--train", "task/train.csv", "--dev", "task/dev.csv",
            "--workdir", "tuned", "--length", "24", "--batch-size", "8", "--epochs", "6",
            "--learning-rate", "5e-3", "--restarts", "0",
            "--set", "model.hidden_dropout_prob=0")  # fmt: skip
PREDICT = ("predict", "--checkpoint", "tuned", "--input", "task/dev.csv",
           "--output", "predictions.jsonl")  # fmt: skip
EMBED = ("embed", "--checkpoint", "workdir", "--input", "lines.txt", "--output", "vectors.npz",
         "--layers=-2,-1", "--length", "32")  # fmt: skip
EXPORTS = (
    ("export", "--checkpoint", "workdir", "--format", "hf", "--output", "hf"),
    ("export", "--checkpoint", "workdir", "--format", "tf1", "--output", "tf1"),
    ("export", "--checkpoint", "tuned", "--format", "hf", "--output", "tuned_hf"),
)
EXPORT_END = ("export", "--checkpoint", "workdir", "--format", "hf", "--moments", "yes",
              "--output", "end")  # fmt: skip
MASKED = ("The [MASK] of Ada eats hay every day.", "In the [MASK] the cat sleeps in the [MASK].")
LINES = (
    "The horse of Ada eats hay every day.",
    "In winter the bear sleeps in the forest.",
    "Boris has a small cat and keeps it in the house.",
    "When the owl is hungry, it asks Clara for mice.",
    "Honey.",
)
# Of a row of metrics.jsonl: how fast it went, not what came of it.
TIMES = ("time", "steps", "step_seconds", "tokens_per_second", "examples_per_second", "mfu",
         "data_wait_seconds")  # fmt: skip
_VERSIONS = ("jax", "jaxlib", "numpy", "flax", "optax")


def platform() -> dict[str, Any]:
    """Returns all that bits may depend on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    facts = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in lines if ":" in line)
    flags = " ".join(sorted(facts.get("flags", facts.get("Features", "")).split()))
    return {
        "versions": {name: importlib.metadata.version(name) for name in _VERSIONS},
        "cpu": facts.get("model name", "unknown"),
        "cpu_model": [facts.get(key, "") for key in ("vendor_id", "cpu family", "model")],
        "cpu_flags_sha256": hashlib.sha256(flags.encode()).hexdigest(),
        "cores": len(os.sched_getaffinity(0)),
    }


def environment() -> dict[str, str]:
    """One CPU device, and XLA as it is."""
    left_out = ("XLA_", "JAX_", "LIBTPU_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    return kept | {"JAX_PLATFORMS": "cpu", "COLUMNS": "100", "HF_HUB_OFFLINE": "1"}


def rows_of(workdir: Path) -> list[dict[str, Any]]:
    """The rows of a run, without times."""
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [{key: row[key] for key in row if key not in TIMES} for row in rows]


def tensors_of(directory: Path) -> dict[str, Any]:
    """The arrays of all safetensors files of a directory, as FILE:NAME."""
    from safetensors.numpy import load_file

    return {
        f"{path.name}:{name}": array
        for path in sorted(directory.glob("*.safetensors"))
        for name, array in sorted(load_file(path).items())
    }


def digest(array: Any) -> str:
    head = f"{array.dtype} {array.shape} ".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()


# --- making it -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="a directory that is not there")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        {"stop": _pretrain_and_stop, "fill_mask": _fill_mask}[arguments.inside]()
        return
    output = arguments.output.absolute()
    output.mkdir(parents=True)
    write_json(output / "platform.json", platform())
    _write_inputs(output)
    bert_jax(output, PREPARE)

    with tempfile.TemporaryDirectory() as folder:
        whole, resumed = Path(folder) / "whole", Path(folder) / "resumed"
        shutil.copytree(output, whole)
        bert_jax(whole, PRETRAIN)
        bert_jax(whole, EXPORT_END)

        assert inside(output, "stop") == 42, "it was not preempted"
        shutil.rmtree(output / "workdir" / "tensorboard", ignore_errors=True)
        steps = sorted(path.name for path in (output / "workdir" / "checkpoints").iterdir())
        assert steps == [str(STOP)], steps
        rows = rows_of(output / "workdir")
        assert rows[-1]["step"] == STOP, rows[-1]

        shutil.copytree(output, resumed)
        bert_jax(resumed, PRETRAIN)
        bert_jax(resumed, EXPORT_END)
        assert rows_of(resumed / "workdir") == rows_of(whole / "workdir"), "rows differ"
        assert rows_of(whole / "workdir")[: len(rows)] == rows, "rows differ"
        sums = {name: digest(array) for name, array in tensors_of(whole / "end").items()}
        again = {name: digest(array) for name, array in tensors_of(resumed / "end").items()}
        assert sums == again, "tensors differ"
        end = output / "end"
        end.mkdir()
        shutil.copy(whole / "end" / "model.safetensors", end)
        write_json(end / "tensors.json", sums)
        lines = [json.dumps(row) for row in rows_of(whole / "workdir")[len(rows) :]]
        (end / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    bert_jax(output, FINETUNE)
    shutil.rmtree(output / "tuned" / "tensorboard", ignore_errors=True)
    for command in (*EXPORTS, PREDICT, EMBED):
        bert_jax(output, command)
    assert inside(output, "fill_mask") == 0
    for step in output.glob("*/checkpoints/*"):
        make_relative(step, output)


def make_relative(step: Path, output: Path) -> None:
    """Takes OUTPUT out of Orbax's note in a step, and mends the step's manifest."""
    note, path = step / "commit_success.txt", step / "manifest.json"
    note.write_text(note.read_text().replace(f"{output}/", ""))
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    data = note.read_bytes()
    manifest["files"][note.name] = {"size": len(data), "crc32": zlib.crc32(data)}
    manifest["checksum"] = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
    path.write_text(json.dumps(manifest, indent=1))


def bert_jax(directory: Path, command: tuple[str, ...]) -> None:
    print(f"$ bert-jax {' '.join(command)}", flush=True)
    subprocess.run(
        [sys.executable, "-m", "bert_jax", *command], cwd=directory, env=environment(), check=True
    )


def inside(directory: Path, what: str) -> int:
    """One of the functions below, in a process whose working directory is `directory`."""
    command = [sys.executable, str(Path(__file__).absolute()), "--inside", what, "."]
    return subprocess.run(command, cwd=directory, env=environment()).returncode


def _write_inputs(output: Path) -> None:
    from bert_jax.config import (
        CheckpointConfig,
        EvaluationConfig,
        ModelConfig,
        OptimizerConfig,
        PhaseConfig,
    )
    from tests import tiny_corpus

    tiny_corpus.write(output / "stories.txt", number=30)
    config = tiny_corpus.tiny_config(
        model=ModelConfig(
            vocab_size=240,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=32,
            initializer_range=0.1,
        ),
        optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=5),
        phases=(
            PhaseConfig(sequence_length=24, steps=25, global_batch_size=8, max_predictions=4),
            PhaseConfig(sequence_length=32, steps=END - 25, global_batch_size=8, max_predictions=5),
        ),
        evaluation=EvaluationConfig(every_steps=10, num_examples=20, batch_size=8),
        checkpoint=CheckpointConfig(every_steps=10, keep_last=1),
    )
    tiny_corpus.write_config(output / "tiny.json", config)
    (output / "lines.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    (output / "task").mkdir()
    for seed, (name, count) in enumerate((("train", 40), ("dev", 16))):
        with (output / "task" / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("text", "label"))
            writer.writerows(_sentences(count, seed=seed))


def _sentences(count: int, *, seed: int) -> list[tuple[str, str]]:
    """Sentences of the stories: whether they are about food."""
    from tests import tiny_corpus

    draw = random.Random(seed)
    text = " ".join(tiny_corpus.documents(number=30, seed=100 + seed)).replace("\n", " ")
    chosen = draw.sample(sorted(set(re.findall(r"[A-Z][^.]*\.", text))), count)
    food = re.compile(r"eats|brings|hungry")
    return [(sentence, "food" if food.search(sentence) else "other") for sentence in chosen]


def _pretrain_and_stop() -> None:
    """The run, with SIGTERM to itself while step `STOP` is under way."""
    from bert_jax.training.metrics import Journal

    from bert_jax.__main__ import console

    write_row = Journal.row

    def row(self: Any, **values: Any) -> None:
        write_row(self, **values)
        if values["step"] == STOP - 1 and "split" not in values:
            # The next step is dispatched before this row is written.
            signal.raise_signal(signal.SIGTERM)

    Journal.row = row
    sys.argv = ["bert-jax", *PRETRAIN]
    console()


def _fill_mask() -> None:
    import jax
    from bert_jax.training.workdir import load_checkpoint

    from bert_jax.data import tokenizer
    from bert_jax.inference.fill_mask import fill_mask
    from bert_jax.model import sharding

    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        checkpoint = load_checkpoint(Path("workdir"), mesh=mesh)
        sub_words = tokenizer.load(checkpoint.tokenizer)
        candidates = {
            text: [[vars(c) for c in place] for place in fill_mask(checkpoint, sub_words, text)]
            for text in MASKED
        }
    write_json(Path("fill_mask.json"), candidates)


def write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
