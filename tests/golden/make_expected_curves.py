"""Records the reference of the demo: bert_jax_lab/reference_curves/demo.json.

    python tests/golden/make_expected_curves.py WORKDIR

Trains the demo's config with three seeds on the embedded documentation, in WORKDIR, which takes
some minutes. Needed if modern_tiny_cpu or the arithmetic of the update changes.
"""

import json
import sys
from pathlib import Path

from bert_jax.__main__ import main
from bert_jax_lab.reference_curves import reference

CONFIG, SEEDS = "modern_tiny_cpu", (0, 1, 2)
ROOT = Path(__file__).parents[2]


def make(workdir: Path) -> None:
    corpus = workdir / "corpus"
    prepare = ["prepare", "--source", "docs:", "--output", str(corpus), "--vocab-size", "8192"]
    run(*prepare, "--validation-fraction", "0.05")
    runs = [workdir / f"seed{seed}" for seed in SEEDS]
    for seed, directory in zip(SEEDS, runs, strict=True):
        words = ["pretrain", CONFIG, "--corpus", str(corpus), "--workdir", str(directory)]
        run(*words, "--set", f"seed={seed}", "--set", "log_every_steps=1", "--set", "hooks=[]")
    found = [reference.read(directory) for directory in runs]
    curves = [
        {"training": vars(each.training[0]), "validation": vars(each.validation[0])}
        for each in found
    ]
    for curve in (curve for each in curves for curve in each.values()):
        curve["losses"] = [round(loss, 4) for loss in curve["losses"]]
    values = {"config": CONFIG, "unigram_entropy_nats": found[0].entropy, "runs": curves}
    target = ROOT / "bert_jax_lab/reference_curves/demo.json"
    target.write_text(json.dumps(values) + "\n", encoding="utf-8")


def run(*words: str) -> None:
    if code := main(words):
        raise SystemExit(code)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
