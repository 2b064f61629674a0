"""Records the reference of the demo: bert_jax_lab/reference_curves/demo.json.

    python tests/golden/make_expected_curves.py WORKDIR

Trains the demo's config with three seeds on the embedded documentation, in WORKDIR, which takes
some minutes. Needed if modern_tiny_cpu or the arithmetic of the update changes.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from bert_jax.__main__ import main
from bert_jax.workdir import log_reader
from bert_jax_lab.reference_curves.reference import window

CONFIG, SEEDS = "modern_tiny_cpu", (0, 1, 2)
ROOT = Path(__file__).parents[2]


def make(workdir: Path) -> None:
    corpus = workdir / "corpus"
    prepare = ["prepare", "--source", "docs:", "--output-dir", str(corpus), "--vocab-size", "8192"]
    run(*prepare, "--validation-fraction", "0.05")
    runs = [workdir / f"seed{seed}" for seed in SEEDS]
    for seed, directory in zip(SEEDS, runs, strict=True):
        words = ["pretrain", CONFIG, "--corpus", str(corpus), "--workdir", str(directory)]
        run(*words, "--set", f"seed={seed}", "--set", "log_every_steps=1", "--set", "hooks=[]")
    entropy = json.loads((corpus / "corpus.json").read_text())["unigram_entropy_nats"]
    curves = [curves_of(log_reader.read_rows(directory)) for directory in runs]
    values = {"config": CONFIG, "unigram_entropy_nats": entropy, "runs": curves}
    target = ROOT / "bert_jax_lab/reference_curves/demo.json"
    target.write_text(json.dumps(values) + "\n", encoding="utf-8")


def curves_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the validation losses, and the mean training loss of the window before each of a
    hundred steps.
    """
    training = {row["step"]: row["mlm_loss"] for row in rows if "split" not in row}
    validation = {row["step"]: row["mlm_loss"] for row in rows if "split" in row and row["step"]}
    size, total = window(len(training)), len(training)
    means = {
        step: statistics.fmean(training[at] for at in range(step - size + 1, step + 1))
        for step in range(size, total + 1, max(1, total // 100))
    }
    return {
        name: {"steps": [*found], "losses": [round(loss, 4) for loss in found.values()]}
        for name, found in (("training", means), ("validation", validation))
    }


def run(*words: str) -> None:
    if code := main(words):
        raise SystemExit(code)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
