"""Measures the gain of contrastive training on raw text over a masked language model.

    python benchmarks/embedding_from_text.py CORPUS RETRIEVAL_SET WORKDIR --seeds 3 [options]

For each seed: modern_tiny_cpu on the corpus, then embed_crops_cpu from it with each kind of pairs
in --rows. Prints a table of the scores on a retrieval set in BEIR's form, and of the share of 512
held-out titles (first sentences) that find their body among 512, with BM25 and the model before its
first step for comparison. With --dims, the run on crops is continued, once with and once without a
loss of its first columns, and scored with those columns. A run that exists is resumed or scored.
"""

import argparse
import collections
import dataclasses
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config import DataConfig
from bert_jax.config_loader import load_config
from bert_jax.data.corpus.several import open_corpora
from bert_jax.inference.retrieve import bm25_search
from bert_jax.model import sharding
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.training.evaluate import HeldOut

Scores = dict[str, dict[str, list[float]]]
# What a kind of pairs needs: dropout makes the difference between two vectors of one text.
CHANGES = {"same": ["model.hidden_dropout_prob=0.1"]}


def verb(*words: object) -> str:
    command = [sys.executable, "-m", "bert_jax", *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class Runs:
    """The runs of all seeds in a workdir, by name."""

    def __init__(self, corpus: Path, workdir: Path, seeds: int):
        self._corpus, self._workdir, self.seeds = corpus, workdir, range(seeds)
        self.of: dict[str, list[Path]] = {}

    def add(self, name: str, config: str, changes: list[str], *, start: str | None = None) -> None:
        """Makes the run of each seed, from the run `start` of the same seed."""
        self.of[name] = [self._workdir / f"{name}-{seed}" for seed in self.seeds]
        for seed, path in zip(self.seeds, self.of[name], strict=True):
            words = [word for each in (*changes, f"seed={seed}") for word in ("--set", each)]
            words += [] if start is None else ["--init-from", self._workdir / f"{start}-{seed}"]
            verb("pretrain", config, "--corpus", self._corpus, "--workdir", path, *words)

    def scores(self, retrieval: Path, names: list[str], *options: object) -> Scores:
        """Returns the scores of each run and of BM25 on a retrieval set."""
        paths = [path for name in names for path in self.of[name]]
        shown = verb("evaluate", *paths, "--retrieval", retrieval, "--json", *options)
        found: Scores = collections.defaultdict(lambda: collections.defaultdict(list))
        for line in shown.splitlines():
            row: dict[str, Any] = json.loads(line)
            place, _ = row.pop("checkpoint"), row.pop("set")
            name = next((n for n in names if Path(place) in self.of[n]), place)
            for metric, value in row.items():
                found[name][metric].append(value)
        return found


class Titles:
    """Held-out titles that look for their own body."""

    def __init__(self, corpus: Path):
        config = load_config("embed_crops_cpu")
        self._config = dataclasses.replace(config, data=DataConfig(sequence_format="title_body"))
        self._corpus, self._mesh = open_corpora(corpus), sharding.make_mesh(fsdp=-1, tensor=1)
        self._held_out: HeldOut | None = None

    def found(self, checkpoint: Path) -> float:
        """Returns the share of titles that have the highest similarity to their own body."""
        with jax.set_mesh(self._mesh):
            loaded = load_checkpoint(checkpoint, mesh=self._mesh, allow_missing_heads=True)
            params = {"encoder": loaded.params["encoder"], "embedding": {}}
            if self._held_out is None:
                phase = self._config.phases[0]
                self._held_out = HeldOut(
                    self._config, phase, corpus=self._corpus, mesh=self._mesh, params=params
                )
            scores = self._held_out.run(params)
        assert scores is not None
        return scores["validation"]["contrastive_accuracy"]

    def found_by_bm25(self) -> float:
        """Returns the same share for BM25 on token ids."""
        assert self._held_out is not None
        (rows,) = self._held_out._examples.values()
        batch = rows.batch_at(0, range(rows.num_examples))
        texts = [
            [" ".join(map(str, ids[at == text])) for ids, at in zip(*both, strict=True)]
            for text in (1, 2)
            for both in [(batch["input_ids"], batch["sequence_ids"])]
        ]
        best = bm25_search(*texts, 1)[:, 0]
        return float(np.mean(best == np.arange(len(best))))


def table(found: Scores) -> None:
    """Prints means over the seeds, and the value of each seed."""
    columns = list(dict.fromkeys(metric for each in found.values() for metric in each))
    print(f"| model | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, each in found.items():
        cells = [f"{statistics.mean(v):.4f} {np.round(v, 4).tolist()}" for v in each.values()]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def first_columns(runs: Runs, retrieval: Path, *, dims: int, steps: int) -> None:
    """Continues the runs on crops with and without a loss of the first columns; prints scores."""
    changes = [f"phases.0.steps={steps}", f"optimizer.warmup_steps={steps // 10}"]
    runs.add("plain", "embed_crops_cpu", changes, start="crops")
    matryoshka = [*changes, f"embedding.dims=[{dims}]"]
    runs.add("matryoshka", "embed_crops_cpu", matryoshka, start="crops")
    for options in ([], ["--dims", dims]):
        print(f"\nColumns: {options[1] if options else 'all'}\n")
        table(runs.scores(retrieval, ["plain", "matryoshka"], *options))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("retrieval", type=Path)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="*", default=["crops", "same"], metavar="KIND[:STEPS]")
    parser.add_argument("--dims", type=int, metavar="N", help="also measure the first N columns")
    parser.add_argument("--more-steps", type=int, default=100, help="of the runs for --dims")
    arguments = parser.parse_args()
    runs = Runs(arguments.corpus, arguments.workdir, arguments.seeds)
    still = ["phases.0.steps=1", "optimizer.warmup_steps=0", "optimizer.learning_rate=1e-12"]
    runs.add("random", "modern_tiny_cpu", ["hooks=[]", *still])
    runs.add("mlm", "modern_tiny_cpu", ["hooks=[]"])
    for given in arguments.rows:
        rows, _, steps = given.partition(":")
        changes = [f"data.sequence_format={rows}", *CHANGES.get(rows, [])]
        changes += [f"phases.0.steps={steps}"] if steps else []
        runs.add(rows, "embed_crops_cpu", changes, start="mlm")
    found, titles = runs.scores(arguments.retrieval, [*runs.of]), Titles(arguments.corpus)
    for name, paths in runs.of.items():
        found[name]["titles"] = [titles.found(path) for path in paths]
    found["BM25"]["titles"] = [titles.found_by_bm25()]
    table(found)
    if arguments.dims is not None:
        first_columns(runs, arguments.retrieval, dims=arguments.dims, steps=arguments.more_steps)


if __name__ == "__main__":
    main()
