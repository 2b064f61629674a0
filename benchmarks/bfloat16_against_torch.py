"""The same run in bfloat16, ours and torch's autocast, beside ours in float32 with two seeds.

    pip install -e '.[parity]'
    bert-jax prepare --source docs: --output runs/corpus
    python benchmarks/bfloat16_against_torch.py runs/corpus runs/bfloat16 [STEPS]

BERT-Base with 4 layers and the corpus's vocabulary, without dropout: same weights, batches, AdamW
and schedule on both sides (curve_against_torch.py has the torch side). On the way of the float32
run the gradient of its parameters is computed in bfloat16 by both, too. Each run is kept in the
second folder, and is not made again; the tables are printed at the end.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import curve_against_torch as theirs
import jax
import numpy as np
import torch

from bert_jax.config import (
    ComputeConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    TrainConfig,
)
from bert_jax.data.corpus.store import Corpus, open_corpus
from bert_jax.data.pretraining.batch import Batch
from bert_jax.data.pretraining.pipeline import EvaluationSet
from bert_jax.interchange import huggingface
from bert_jax.model import bert
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.training import device_feed, preflight
from bert_jax.training.evaluate import EVALUATION_SEED
from bert_jax.training.initialization import fresh_state
from bert_jax.training.pretrain import pipeline_of
from bert_jax.update.step import compile_lowered, lower_train_step

STEPS = 300
# Rows of a batch, tokens of a row, predictions of a row; held-out rows.
ROWS, LENGTH, PREDICTIONS, HELD_OUT = 8, 32, 5, 128
# name -> (who, type, seed)
RUNS = {
    "ours, float32": ("ours", "float32", 0),
    "ours, bfloat16": ("ours", "bfloat16", 0),
    "torch, autocast": ("torch", "bfloat16", 0),
    "ours, float32, another seed": ("ours", "float32", 1),
}


def config_of(corpus: Corpus, dtype: str, seed: int, steps: int) -> TrainConfig:
    return TrainConfig(
        name="bfloat16",
        seed=seed,
        model=ModelConfig(
            vocab_size=corpus.vocabulary.size,
            num_hidden_layers=4,
            hidden_act="gelu",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        data=DataConfig(),
        optimizer=OptimizerConfig(
            learning_rate=2e-4, warmup_steps=steps // 10, bias_correction=True
        ),
        compute=ComputeConfig(dtype=dtype),
        phases=(
            PhaseConfig(
                sequence_length=LENGTH,
                steps=steps,
                global_batch_size=ROWS,
                max_predictions=PREDICTIONS,
            ),
        ),
    )


class Training:
    """The state of our run, updated step by step."""

    def __init__(self, config: TrainConfig, corpus: Corpus):
        self.config, self.mesh = config, preflight.mesh_of(config)
        with jax.set_mesh(self.mesh):
            self.state = fresh_state(config, corpus, self.mesh)
        self._step: Any = None

    def step(self, batch: Batch) -> float:
        """Makes one update; returns the masked-LM loss before the update."""
        with jax.set_mesh(self.mesh):
            placed = device_feed.whole_to_global(batch, mesh=self.mesh)
            if self._step is None:
                lowered = lower_train_step(self.config, self.state, placed, objective=MLM_NSP)
                self._step = compile_lowered(lowered)
            self.state, metrics = self._step(self.state, placed)
        return float(metrics["mlm_loss"])


def our_loss(params: bert.Params, batch: Batch, config: TrainConfig) -> tuple[Any, Any]:
    outputs = bert.apply(params, batch, config=config.model, compute=config.compute)
    sums = MLM_NSP.sums(outputs, batch)
    return MLM_NSP.metrics(sums)["loss"], (sums["mlm_loss"], sums["mlm_count"])


def our_gradient(params: bert.Params, batch: Batch, config: TrainConfig) -> dict[str, np.ndarray]:
    gradient = jax.jit(jax.grad(lambda p, b: our_loss(p, b, config)[0]))(params, batch)
    return huggingface.to_tensors(gradient)


def their_gradient(params: bert.Params, batch: Batch, config: TrainConfig) -> dict[str, np.ndarray]:
    model = theirs.their_model(config)
    theirs.load_params(model, params)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mlm, nsp, masked = theirs.losses(model, batch)
    (mlm / masked + nsp / ROWS).backward()
    return {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}


def cosine(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Returns that of all parameters as one vector."""

    def product(x: dict[str, np.ndarray], y: dict[str, np.ndarray]) -> float:
        return sum(float(np.vdot(np.float64(x[n]), np.float64(y[n]))) for n in x.keys() & y.keys())

    return product(a, b) / np.sqrt(product(a, a) * product(b, b))


def run(who: str, config: TrainConfig, corpus: Corpus, gradients_at: list[int]) -> dict[str, Any]:
    examples = EvaluationSet(
        corpus.validation,
        sequence_length=LENGTH,
        max_predictions=PREDICTIONS,
        num_examples=HELD_OUT,
        batch_size=ROWS,
        seed=EVALUATION_SEED,
        collator=MLM_NSP,
        vocabulary=corpus.vocabulary,
        options=config.data,
    )
    training = Training(config, corpus)
    found: dict[str, Any] = {"losses": [], "held_out": {}, "gradients": {}}
    held_out: Callable[[], float]
    if who == "torch":
        model = theirs.their_model(config)
        optimizer = theirs.their_optimizer(model, config.optimizer)

        def held_out() -> float:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return theirs.held_out_loss(model, examples, ROWS)

    else:
        score = jax.jit(lambda p, b: our_loss(p, b, config)[1])

        def held_out() -> float:
            batches = [examples.batch_at(i, range(ROWS)) for i in range(examples.num_batches)]
            with jax.set_mesh(training.mesh):
                sums = [score(training.state.params, batch) for batch in batches]
            total, count = np.sum(np.array(sums, float), axis=0)
            return float(total / count)

    began = time.monotonic()
    pipeline = pipeline_of(config, corpus)
    for step in range(config.total_steps):
        batch = pipeline.batch_at(step, range(ROWS))
        if step in gradients_at:
            found["gradients"][step] = gradients(training, batch, config)
        if who == "torch":
            loss = theirs.their_update(
                model, optimizer, batch, step=step, config=config, dtype=torch.bfloat16
            )
        else:
            loss = training.step(batch)
        found["losses"].append(loss)
        done = step + 1
        if done % max(1, config.total_steps // 3) == 0:
            found["held_out"][done] = held_out()
            print(
                f"  {done}: {found['held_out'][done]:.3f}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
    return found


def gradients(training: Training, batch: Batch, config: TrainConfig) -> dict[str, float]:
    """Cosines of the gradient at the present parameters, in bfloat16, to that in float32."""
    params = training.state.params
    narrow = dataclasses.replace(config, compute=ComputeConfig(dtype="bfloat16"))
    with jax.set_mesh(training.mesh):
        exact, ours = (our_gradient(params, batch, c) for c in (config, narrow))
    torchs = their_gradient(params, batch, config)
    return {
        "ours, float32": cosine(ours, exact),
        "torch, float32": cosine(torchs, exact),
        "ours, torch": cosine(ours, torchs),
    }


def tables(found: dict[str, dict[str, Any]]) -> str:
    reference = found["ours, float32"]
    lines = ["| updates | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    for step in reference["held_out"]:
        cells = [f"{run['held_out'][step]:.4f}" for run in found.values()]
        lines.append(f"| {step} | " + " | ".join(cells) + " |")
    lines += ["", "Mean and largest difference of the training loss to ours in float32:"]
    for name, run in list(found.items())[1:]:
        off = np.abs(np.array(run["losses"]) - np.array(reference["losses"]))
        lines.append(f"- {name}: {off.mean():.4f}, {off.max():.4f}")
    lines += ["", "| update | " + " | ".join(next(iter(reference["gradients"].values()))) + " |"]
    lines.append("|---" * 4 + "|")
    for step, cosines in reference["gradients"].items():
        lines.append(f"| {step} | " + " | ".join(f"{c:.5f}" for c in cosines.values()) + " |")
    return "\n".join(lines)


def main(corpus_directory: Path, folder: Path, steps: int) -> None:
    corpus = open_corpus(corpus_directory)
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, (who, dtype, seed) in RUNS.items():
        path = folder / f"{who}-{dtype}-{seed}.json"
        if not path.exists():
            print(name, flush=True)
            at = [0, steps // 6, steps // 2, steps - 1] if name == "ours, float32" else []
            config = config_of(corpus, dtype, seed, steps)
            path.write_text(json.dumps(run(who, config, corpus, at)))
        found[name] = json.loads(path.read_text())
    print(tables(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else STEPS)
