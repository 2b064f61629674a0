"""Measures packed rows: how full they are, and the gain in pairs per second.

    python benchmarks/packing.py CORPUS [CORPUS ...] [--rows sentence_pairs] [--lengths 128 512]
        [--turns 40]

Each CORPUS is a directory of `bert-jax prepare`. First, for each length and kind of rows, the rows
of one epoch: their number, how full they are, and the seconds of planning and packing. Then, with
`--turns`, training steps in float32 with the shape of `bert_small_cpu` (4 x 256) on the first
corpus, alternately packed and not packed: pairs per second, by the medians, and their ratio.
"""

import argparse
import dataclasses
import itertools
import statistics
import time

import jax
import numpy as np

from bert_jax.config import DataConfig, PhaseConfig, TrainConfig
from bert_jax.config_checks import complete
from bert_jax.config_loader import load_config
from bert_jax.data.corpus.store import Corpus, open_corpus
from bert_jax.data.pretraining import packing
from bert_jax.data.pretraining.pipeline import Pipeline
from bert_jax.model import sharding
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.registry import SEQUENCE_FORMATS
from bert_jax.update.state import TrainState
from bert_jax.update.step import compile_lowered, lower_train_step

# Tokens per step, for all lengths.
TOKENS = 2048


def show_fill(name: str, corpus: Corpus, rows_of: str, length: int) -> None:
    began = time.perf_counter()
    plan = SEQUENCE_FORMATS[rows_of].plan(
        corpus.train, options=DataConfig(), sequence_length=length, key=0
    )
    planned = time.perf_counter()
    most = PhaseConfig(sequence_length=length).resolved(0.15, packing="best_fit").max_sequences
    lengths = plan.lengths
    rows = packing.best_fit(lengths, length=length, most=most)
    packed = time.perf_counter()
    tokens = lengths.sum() / length
    print(
        f"| {name} | {rows_of} | {length} | {len(plan):,} | {len(rows):,} | "
        f"{len(plan) / len(rows):.3f} | {tokens / len(plan):.1%} | {tokens / len(rows):.1%} | "
        f"{planned - began:.2f} | {packed - planned:.2f} |"
    )


class Side:
    """Training steps on one kind of rows, one at a time."""

    def __init__(self, corpus: Corpus, length: int, kind: str, mesh: jax.sharding.Mesh):
        small = load_config("bert_small_cpu")
        phase = PhaseConfig(sequence_length=length, steps=10**6, global_batch_size=TOKENS // length)
        config: TrainConfig = complete(
            dataclasses.replace(
                small,
                model=dataclasses.replace(small.model, max_position_embeddings=length),
                data=dataclasses.replace(small.data, packing=kind),
                phases=(phase,),
            )
        )
        self._rows = range(phase.global_batch_size)
        self._pipeline = Pipeline(
            corpus.train,
            collator=MLM_NSP,
            vocabulary=corpus.vocabulary,
            options=config.data,
            phases=config.phases,
            seed=0,
        )
        self._layout = sharding.batch_sharding(mesh)
        self._state, self._steps = TrainState.initial(config, mesh), 0
        lowered = lower_train_step(config, self._state, self._batch(), objective=MLM_NSP)
        self._step = compile_lowered(lowered)
        self.seconds: list[float] = []
        self.pairs: list[float] = []

    def _batch(self) -> dict:
        batch = self._pipeline.batch_at(self._steps, self._rows)
        return jax.device_put(batch, self._layout)

    def turn(self) -> None:
        batch = self._batch()
        pairs = float(np.sum(batch["nsp_weights"]))
        began = time.perf_counter()
        self._state, metrics = self._step(self._state, batch)
        jax.block_until_ready(metrics)
        if self._steps:  # the first step also warms up
            self.seconds.append(time.perf_counter() - began)
            self.pairs.append(pairs)
        self._steps += 1

    def pairs_per_second(self) -> float:
        return statistics.mean(self.pairs) / statistics.median(self.seconds)


def show_speed(corpus: Corpus, length: int, turns: int) -> None:
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        sides = [Side(corpus, length, kind, mesh) for kind in ("none", "best_fit")]
        for _ in range(turns + 1):
            for side in sides:
                side.turn()
    unpacked, packed = sides
    print(
        f"| {length} | {TOKENS // length} | {statistics.mean(packed.pairs):.1f} | "
        f"{statistics.median(unpacked.seconds):.3f} | {statistics.median(packed.seconds):.3f} | "
        f"{unpacked.pairs_per_second():.1f} | {packed.pairs_per_second():.1f} | "
        f"{packed.pairs_per_second() / unpacked.pairs_per_second():.2f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="+")
    parser.add_argument(
        "--rows", nargs="+", choices=SEQUENCE_FORMATS.names(), default=[DataConfig.sequence_format]
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--turns", type=int, default=0)
    arguments = parser.parse_args()
    corpora = {name.rstrip("/").rpartition("/")[2]: open_corpus(name) for name in arguments.corpus}

    print("| corpus | rows | length | sequences | packed rows | per row | full, unpacked "
          "| full, packed | plan, s | packing, s |")  # fmt: skip
    print("|" + "---|" * 10)
    for name, corpus in corpora.items():
        for rows_of, length in itertools.product(arguments.rows, arguments.lengths):
            show_fill(name, corpus, rows_of, length)
    if not arguments.turns:
        return
    print("\n| length | rows | pairs in packed rows | seconds, unpacked | packed | "
          "pairs/s, unpacked | packed | ratio |")  # fmt: skip
    print("|" + "---|" * 8)
    for length in arguments.lengths:
        show_speed(next(iter(corpora.values())), length, arguments.turns)


if __name__ == "__main__":
    main()
