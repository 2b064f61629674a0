"""RoBERTa- and ELECTRA-shaped runs on a text: one that nobody touches, and one killed twice.

    python benchmarks/killed_and_whole.py simplewiki.txt.gz --kind roberta electra

Each kind is trained from its recipe with four narrow layers. SIGKILL comes after a third and after
two thirds of the updates, and the same command goes on. Then the rows of both logs, and the tensors
of both exports, are compared; a bit that differs is exit code 1.
"""

import argparse
import filecmp
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SHAPE = (
    "model.num_hidden_layers=4",
    "model.hidden_size=192",
    "model.num_attention_heads=3",
    "model.intermediate_size=768",
    "model.max_position_embeddings=64",
    "model.initializer_range=0.06",
    "model.hidden_dropout_prob=0",
    "model.attention_probs_dropout_prob=0",
    "compute.dtype=float32",
    "output_bias=log_frequency",
    "optimizer.learning_rate=1e-3",
    "optimizer.warmup_steps=100",
    "evaluation.num_examples=512",
    "evaluation.batch_size=64",
    "log_every_steps=10",
)
# The recipe, the options of `prepare`, and what else is set.
_KINDS = {
    "roberta": (
        "roberta_base",
        ("--tokenizer", "bpe", "--vocab-size", "16384"),
        ("model.vocab_size=16384", "model.norm_placement=pre"),
    ),
    "electra": (
        "electra_small",
        ("--vocab-size", "16384"),
        (
            "model.vocab_size=16384",
            "model.embedding_size=96",
            "model.generator_size=0.3333333333333333",
            "optimizer.bias_correction=true",
        ),
    ),
}
# Of a row of metrics.jsonl, what is measured in seconds, and over how many steps.
_TIMES = ("seconds", "tokens_per_second", "mfu", "time", "steps")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("text", type=Path, help="documents, as `bert-jax prepare` reads them")
    parser.add_argument("--kind", nargs="+", choices=_KINDS, default=list(_KINDS))
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--keep", type=Path, default=Path("runs/killed"), help="where runs are")
    arguments = parser.parse_args()
    differs = [_compare(kind, arguments) for kind in arguments.kind]
    return int(any(differs))


def _compare(kind: str, arguments: argparse.Namespace) -> bool:
    """Trains both runs of a kind; returns whether anything differs."""
    config, prepare, changes = _KINDS[kind]
    folder = arguments.keep.resolve() / kind
    corpus = folder / "corpus"
    if not (corpus / "corpus.json").exists():
        few = ("--validation-fraction", "0.05")
        _bert_jax(
            "prepare", "--source", arguments.text.resolve(), "--output", corpus, *few, *prepare
        )
    phase = {"sequence_length": 64, "steps": arguments.steps, "global_batch_size": 16}
    changes = (*_SHAPE, *changes, f"phases={json.dumps([phase])}")
    changes += (f"evaluation.every_steps={arguments.steps // 4}",)
    changes += (f"checkpoint.every_steps={arguments.steps // 8}",)
    command = ["pretrain", config, "--corpus", corpus]
    command += [word for change in changes for word in ("--set", change)]
    whole, killed = folder / "whole", folder / "killed"
    for number in (1, 2):
        _kill_at(number * arguments.steps // 3, [*command, "--workdir", killed], killed)
    for run in (whole, killed):
        _bert_jax(*command, "--workdir", run)
        if not Path(f"{run}-hf").exists():
            _bert_jax("export", "--checkpoint", run, "--output", f"{run}-hf")
    rows = [[_without_times(row) for row in _rows(run)] for run in (whole, killed)]
    same_rows = sum(a == b for a, b in zip(*rows, strict=False))
    export = Path(f"{whole}-hf")
    tensors = [str(path.relative_to(export)) for path in export.rglob("*.safetensors")]
    _, unequal, missing = filecmp.cmpfiles(export, f"{killed}-hf", tensors, shallow=False)
    equal = len(tensors) - len(unequal) - len(missing)
    print(f"{kind}: equal are {same_rows} of {len(rows[0])} rows of the log, and the tensors of "
          f"{equal} of {len(tensors)} files")  # fmt: skip
    for row in rows[0]:
        if row.get("split"):
            names = ("mlm_loss", "mlm_accuracy", "rtd_loss", "rtd_auc")
            found = {name: round(row[name], 4) for name in names if name in row}
            print(json.dumps({"kind": kind, "step": row["step"], **found}))
    return rows[0] != rows[1] or bool(unequal or missing) or not tensors


def _bert_jax(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "bert_jax", *map(str, words)], cwd=ROOT, check=True)


def _kill_at(step: int, command: list[object], run: Path) -> None:
    if _last_step(run) >= step:
        return
    words = [sys.executable, "-m", "bert_jax", *map(str, command)]
    process = subprocess.Popen(words, cwd=ROOT)
    while _last_step(run) < step:
        if process.poll() is not None:
            raise SystemExit(f"{run}: ended with {process.returncode} before step {step}")
        time.sleep(0.2)
    process.kill()
    process.wait()
    print(f"{run}: killed at step {_last_step(run)}", file=sys.stderr)


def _rows(run: Path) -> list[dict]:
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _last_step(run: Path) -> int:
    return max((row["step"] for row in _rows(run)), default=0)


def _without_times(row: dict) -> dict:
    return {name: value for name, value in row.items() if not name.endswith(_TIMES)}


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
