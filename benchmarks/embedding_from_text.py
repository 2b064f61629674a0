"""Measures the gain of contrastive training on raw text over a masked language model.

    python benchmarks/embedding_from_text.py CORPUS RETRIEVAL_SET WORKDIR --seeds 3

For each seed: modern_tiny_cpu on the corpus, then embed_crops_cpu from it with each kind of pairs
in --rows. Prints a table of the scores on a retrieval set in BEIR's form, and of the share of 512
held-out titles (first sentences) that find their body among 512, with BM25 and the model before the
first step for comparison. A run that exists is resumed or only scored.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

from bert_jax.config import DataConfig
from bert_jax.config_loader import load_config
from bert_jax.data.corpus.several import open_corpora
from bert_jax.model import sharding
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.training.evaluate import HeldOut


def verb(*words: object) -> str:
    command = [sys.executable, "-m", "bert_jax", *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def titles_found(checkpoint: Path, corpus: Path) -> float:
    """Returns the share of held-out titles with the highest similarity to their own body."""
    config = load_config("embed_crops_cpu")
    config = config.__class__(**vars(config) | {"data": DataConfig(sequence_format="title_body")})
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        loaded = load_checkpoint(checkpoint, mesh=mesh, allow_missing_heads=True)
        params = {"encoder": loaded.params["encoder"], "embedding": {}}
        held_out = HeldOut(
            config, config.phases[0], corpus=open_corpora(corpus), mesh=mesh, params=params
        )
        scores = held_out.run(params)
    assert scores is not None
    return scores["validation"]["contrastive_accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("retrieval", type=Path)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", action="append", help="kinds of pairs (default: crops, same)")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in range(arguments.seeds):
        runs = {"before the first step": arguments.workdir / f"random-{seed}"}
        common = ["--corpus", arguments.corpus, "--set", f"seed={seed}", "--workdir"]
        masked = ["pretrain", "modern_tiny_cpu", "--set", "hooks=[]"]
        one_step = ["--set", "phases.0.steps=1", "--set", "optimizer.warmup_steps=0"]
        one_step += ["--set", "optimizer.learning_rate=1e-12"]
        verb(*masked, *one_step, *common, runs["before the first step"])
        runs["masked language model"] = arguments.workdir / f"mlm-{seed}"
        verb(*masked, *common, runs["masked language model"])
        for rows in arguments.rows or ("crops", "same"):
            runs[rows] = arguments.workdir / f"{rows}-{seed}"
            changes = [
                "--set",
                f"data.sequence_format={rows}",
                "--init-from",
                runs["masked language model"],
            ]
            # Dropout makes the difference between two vectors of one text.
            changes += ["--set", "model.hidden_dropout_prob=0.1"] if rows == "same" else []
            verb("pretrain", "embed_crops_cpu", *changes, *common, runs[rows])
        shown = verb("evaluate", *runs.values(), "--retrieval", arguments.retrieval, "--json")
        names = {str(path): name for name, path in runs.items()}
        for line in shown.splitlines():
            scores = json.loads(line)
            place, _ = scores.pop("checkpoint"), scores.pop("set")
            if place in names:
                scores["titles"] = titles_found(Path(place), arguments.corpus)
            found.setdefault(names.get(place, place), []).append(scores)
    columns = [*next(iter(found.values()))[0]]
    print(f"| model | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, each in found.items():
        means = [
            statistics.mean(row[column] for row in each) for column in columns if column in each[0]
        ]
        spread = max(row[columns[0]] for row in each) - min(row[columns[0]] for row in each)
        cells = [f"{means[0]:.4f} (range {spread:.4f})", *(f"{mean:.4f}" for mean in means[1:])]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
