"""Measures a training step on pairs of texts in shared rows, against one text per row.

    python benchmarks/embedding_packing.py PAIRS.jsonl MODEL [--rounds 4] [--batch-size 32]

PAIRS has objects with `query` and `positive`; MODEL is any encoder. Both sides train the same model
on the same pairs with InfoNCE in turns, without dropout, so that their losses are equal. One side
has the rows of `bert-jax finetune --task pairs`, which several texts share; the other has a row for
each text, padded to the longest text of the batch. Prints tokens per second without padding, and
the share of computed tokens without padding.
"""

import argparse
import dataclasses
import statistics
import time
from pathlib import Path

import jax
import numpy as np

from bert_jax.data.pairs.texts import text_ids
from bert_jax.data.tasks.encode_rows import Features
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.model import sharding
from bert_jax.objectives.contrastive import PairObjective
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.registry import TASKS
from bert_jax.tasks.finetune import Settings, _beginning, training_batches
from bert_jax.tasks.sweep import _config
from bert_jax.tasks.task_data import Sources, load_task
from bert_jax.update.step import compile_lowered, lower_train_step

NO_DROPOUT = ("model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0")


def up(lengths: np.ndarray) -> np.ndarray:
    """Returns lengths rounded up to multiples of 8, the widths of rows."""
    return -(-lengths // 8) * 8


def one_text_per_row(features: Features, rows: np.ndarray, *, pad: int) -> dict[str, np.ndarray]:
    """Returns a batch of the examples with one row per text."""
    assert features.text_lengths is not None
    lengths = features.text_lengths[rows]
    begins = np.cumsum(lengths, axis=1) - lengths
    column, size = np.arange(int(up(lengths.max()))), lengths.reshape(-1, 1)
    place = np.minimum(begins.reshape(-1, 1) + column, features.input_ids.shape[1] - 1)
    is_token = (column < size).astype(np.int32)
    ids = features.input_ids[np.repeat(rows, lengths.shape[1])[:, None], place]
    batch = {
        "input_ids": np.where(is_token > 0, ids, pad).astype(np.int32),
        "token_type_ids": np.zeros_like(is_token),
        "position_ids": (column * is_token).astype(np.int32),
        "sequence_ids": is_token,
        "text_positions": np.zeros((size.size, 1), np.int32),
    }
    ones = np.ones((len(rows), 1), np.float32)
    ids = text_ids(batch, texts=1)
    return batch | {"text_ids": ids, "weights": ones, "labels": 0 * ones}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pairs", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=128)
    arguments = parser.parse_args()
    length, size = arguments.max_length, arguments.batch_size
    mesh, objective = sharding.make_mesh(fsdp=-1, tensor=1), PairObjective()
    layout = sharding.batch_sharding(mesh)
    spec = dataclasses.replace(TASKS["pairs"].spec, text_columns=("query", "positive"))
    with jax.set_mesh(mesh):
        source = load_checkpoint(arguments.model, mesh=mesh, allow_missing_heads=True)
        words = load_tokenizer(source.tokenizer)
        data = load_task(spec, Sources(train=arguments.pairs), words, length=length)
        settings = Settings(batch_size=size, overrides=NO_DROPOUT)
        config = _config(source, data, settings, length=length)
        features = data.train.features
        assert features.text_lengths is not None
        packed = training_batches(features, config, mesh)
        sides = {
            "shared rows": packed,
            "one text per row": lambda rows: one_text_per_row(
                features, rows, pad=words.special.pad
            ),
        }
        states = {name: _beginning(config, source).to_mesh(mesh) for name in sides}
        draw, steps = np.random.default_rng(0), {}
        rates: dict[str, list] = {name: [] for name in sides}
        computed, tokens = dict.fromkeys((*sides, "one text per row, each column alone"), 0), 0
        for number in range(arguments.rounds):
            rows = draw.choice(len(features), size, replace=False)
            count, losses = int(features.lengths[rows].sum()), []
            tokens += count
            columns = up(features.text_lengths[rows].max(axis=0))
            computed["one text per row, each column alone"] += size * int(columns.sum())
            for name, batch_of in sides.items():
                batch = jax.device_put(batch_of(rows), layout)
                computed[name] += batch["input_ids"].size
                shape = name, batch["input_ids"].shape
                if shape not in steps:
                    lowered = lower_train_step(config, states[name], batch, objective=objective)
                    steps[shape] = compile_lowered(lowered)
                began = time.perf_counter(), time.process_time()
                states[name], values = steps[shape](states[name], batch)
                jax.block_until_ready(states[name])
                ended = time.perf_counter(), time.process_time()
                rates[name].append([count / (b - a) for a, b in zip(began, ended, strict=True)])
                losses.append(float(values["loss"]))
            shown = ", ".join(f"{loss:.6f}" for loss in losses)
            print(f"round {number}: losses {shown}, {count:,} tokens", flush=True)
    for clock, unit in enumerate(("second", "CPU second")):
        ours, theirs = (statistics.median(r[clock] for r in each) for each in rates.values())
        print(f"tokens per {unit}: {ours:,.0f} and {theirs:,.0f}, ratio {ours / theirs:.2f}")
    for name, each in computed.items():
        print(f"no padding, {name}: {100 * tokens / each:.1f} %")


if __name__ == "__main__":
    main()
