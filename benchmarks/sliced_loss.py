"""The loss of masked words in slices of the vocabulary beside whole scores.

    python benchmarks/sliced_loss.py [--words 50368 256000] [--slices 16] [--layers 2]

The loss alone, forward and backward, of 2,458 predictions (30 % of a row of 8,192) with drawn
scores; and the train step of `modernbert_base` on one such row, with fewer layers than its 22: in
each of them the loss is a larger share of the time than in all. float32, one device, 12 GiB.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from bert_jax import config_loader
from bert_jax.config import TrainConfig
from bert_jax.model import sharding
from bert_jax.model.heads.sliced_scores import SlicedScores
from bert_jax.model.losses import cross_entropy_and_normaliser
from bert_jax.objectives.mlm import MLM
from bert_jax.pretrained.model_card import markdown_table
from bert_jax.training import device_feed
from bert_jax.update.state import TrainState
from bert_jax.update.step import compile_lowered, lower_train_step

_LENGTH, _WIDTH, _PREDICTIONS = 8192, 768, 2458


def loss_alone(words: int, slices: int, turns: int) -> list[str]:
    """Returns the cells of the table about the loss: how far it is from that of whole scores,
    memory and seconds of both.
    """
    draw = np.random.default_rng(0)
    x, table, bias = (
        jnp.asarray(scale * draw.standard_normal(shape), jnp.float32)
        for scale, shape in ((1, (1, _PREDICTIONS, _WIDTH)), (0.1, (words, _WIDTH)), (1, words))
    )
    targets = jnp.asarray(draw.integers(0, words, (1, _PREDICTIONS)), jnp.int32)

    def whole(x, table, bias):
        scores = jnp.einsum("bmd,vd->bmv", x, table, preferred_element_type=jnp.float32) + bias
        loss, _, normaliser = cross_entropy_and_normaliser(scores, targets)
        return jnp.sum(loss + 1e-4 * jnp.square(normaliser))

    def sliced(x, table, bias):
        loss, _, normaliser = SlicedScores(x, table, bias, slices).cross_entropy(targets)
        return jnp.sum(loss + 1e-4 * jnp.square(normaliser))

    programs = [
        jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).lower(x, table, bias).compile()
        for loss in (whole, sliced)
    ]
    (value, gradients), (value_s, gradients_s) = (run(x, table, bias) for run in programs)
    apart = max(
        float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(a)))
        for a, b in zip(gradients, gradients_s, strict=True)
    )
    memory = [run.memory_analysis().temp_size_in_bytes for run in programs]
    del gradients, gradients_s
    seconds = in_turns([lambda run=run: run(x, table, bias) for run in programs], turns)
    return [
        f"{abs(float(value_s) / float(value) - 1):.1e}",
        f"{apart:.1e}",
        *(f"{size / 2**20:,.0f}" for size in memory),
        f"1/{_PREDICTIONS * words * 4 / memory[1]:.1f}",
        *(f"{each:.2f}" for each in seconds),
    ]


def step(words: int, slices: int, layers: int, turns: int) -> list[str]:
    """Returns the cells about the train step: seconds of both, and their ratio."""
    changes = [
        f"model.vocab_size={words}", f"model.num_hidden_layers={layers}", "compute.dtype=float32",
        f"phases.0.sequence_length={_LENGTH}", "phases.0.global_batch_size=1",
        "phases.0.steps=1000", "phases.0.max_predictions=-1", "phases.0.max_sequences=-1",
    ]  # fmt: skip
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        configs = [
            config_loader.load_config("modernbert_base", [*changes, f"compute.loss_slices={n}"])
            for n in (1, slices)
        ]
        whole, sliced = in_turns([step_of(config, mesh) for config in configs], turns)
    return [f"{whole:.1f}", f"{sliced:.1f}", f"{sliced / whole:.2f}"]


def step_of(config: TrainConfig, mesh: jax.sharding.Mesh) -> Callable[[], Any]:
    """Returns what makes one step of a run's first phase, each time the next one, on the same
    batch, whose rows have one sequence each.
    """
    phase = config.phases[0]
    rows, length = phase.global_batch_size, phase.sequence_length
    described = device_feed.abstract_batch(phase, fields=MLM.fields, mesh=mesh)
    batch = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), described)
    places = np.sort(np.random.default_rng(0).permutation(length)[: phase.max_predictions])
    batch |= {
        "position_ids": jnp.tile(jnp.arange(length, dtype=jnp.int32), (rows, 1)),
        "mlm_positions": jnp.tile(jnp.asarray(places, jnp.int32), (rows, 1)),
    }
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    state = TrainState.create(config).to_mesh(mesh)
    run = compile_lowered(lower_train_step(config, state, batch, objective=MLM))

    def once() -> Any:
        nonlocal state
        state, row = run(state, batch)
        return row

    return once


def in_turns(calls: list[Callable[[], Any]], turns: int) -> list[float]:
    """Returns the fewest seconds of each, after a first call; they take turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(turns + 1):
        for call, own in zip(calls, seconds, strict=True):
            began = time.perf_counter()
            jax.block_until_ready(call())
            if turn:
                own.append(time.perf_counter() - began)
    print(*(f"{each:.2f}" for own in seconds for each in own), "s", file=sys.stderr)
    return [min(own) for own in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, nargs="+", default=[50_368, 256_000])
    parser.add_argument("--slices", type=int, default=16)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    slices, turns = arguments.slices, arguments.turns
    columns = ["words", "value apart", "gradients apart", "loss, whole: MiB", "sliced: MiB",
               "of the scores", "loss, whole: s", "sliced: s", "step, whole: s", "sliced: s",
               "ratio"]  # fmt: skip
    rows = [
        [f"{words:,}", *loss_alone(words, slices, turns), *step(words, slices, arguments.layers,
                                                                turns)]
        for words in arguments.words
    ]  # fmt: skip
    print(markdown_table(columns, rows))


if __name__ == "__main__":
    main()
