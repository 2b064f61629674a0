"""Compares a ModernBERT with transformers in torch on this machine: speed, and training curve.

    pip install torch==2.13.0 transformers==4.57.6
    python benchmarks/modernbert_against_torch.py CORPUS [--lengths 512 1024] [--updates 200]

CORPUS is a directory of `bert-jax prepare`. The model is 6 x 256 in float32 with ModernBERT's
layers: every third one global, the others with a window of 128. Both sides begin with the same
weights.

Speed: alternating training steps of the two sides. Ours trains packed rows. torch trains the same
number of rows with one sequence of the same plan each, padded to the longest of its batch as in
transformers' collators; with SDPA attention, `torch.optim.AdamW`, and the vocabulary head only on
masked tokens (`sparse_prediction`). Real tokens per second are compared, by their medians.

Curve: both sides train the padded rows for `--updates` updates of AdamW, and each computes the
held-out loss of masked tokens ten times.
"""

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bert_jax.runtime.host_allocator import keep_freed_memory

keep_freed_memory()  # as in `bert-jax pretrain`, before importing jax; also applies to torch

import jax  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from torch_updates import Updates  # noqa: E402

from bert_jax.config import (  # noqa: E402
    ComputeConfig,
    DataConfig,
    HeadConfig,
    OptimizerConfig,
    PhaseConfig,
    TrainConfig,
)
from bert_jax.config_checks import complete  # noqa: E402
from bert_jax.config_loader import load_config  # noqa: E402
from bert_jax.data.corpus.store import Corpus, open_corpus  # noqa: E402
from bert_jax.data.pretraining.pipeline import EvaluationSet, Pipeline  # noqa: E402
from bert_jax.interchange import huggingface  # noqa: E402
from bert_jax.model import bert, sharding  # noqa: E402
from bert_jax.objectives.mlm import MLM  # noqa: E402
from bert_jax.training.evaluate import EVALUATION_SEED  # noqa: E402
from bert_jax.update.state import TrainState  # noqa: E402
from bert_jax.update.step import compile_lowered, lower_train_step  # noqa: E402

_TOKENS = 4096  # per step, at each length
_TURNS, _WARM = 25, 5
_EVALUATIONS = 10
_HEAD = HeadConfig(parts=("mlm",))


def config_of(corpus: Corpus, length: int, *, packed: bool, updates: int) -> TrainConfig:
    model = dataclasses.replace(
        load_config("modernbert_base").model,
        vocab_size=corpus.vocabulary.size,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=384,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,
    )
    return complete(
        TrainConfig(
            objective="mlm",
            model=model,
            head=_HEAD,
            compute=ComputeConfig(dtype="float32"),
            data=DataConfig(sequence_format="documents", packing="best_fit" if packed else "none"),
            optimizer=OptimizerConfig(
                learning_rate=1e-3, warmup_steps=20, bias_correction=True, clip_norm=1.0
            ),
            phases=(
                PhaseConfig(
                    sequence_length=length,
                    steps=updates,
                    global_batch_size=_TOKENS // length,
                    masked_lm_prob=0.3,
                    max_predictions=-1,
                ),
            ),
        )
    )


class Ours:
    def __init__(self, config: TrainConfig, batch: dict[str, np.ndarray]):
        self.mesh = sharding.make_mesh(fsdp=-1, tensor=1)
        jax.set_mesh(self.mesh)
        self.state = TrainState.create(config).to_mesh(self.mesh)
        lowered = lower_train_step(config, self.state, self._placed(batch), objective=MLM)
        self._step = compile_lowered(lowered)

        def sums(params, batch):
            out = bert.apply(params, batch, config=config.model, compute=config.compute, head=_HEAD)
            return MLM.sums(out, batch)

        self._sums = jax.jit(sums)

    def _placed(self, batch):
        return jax.device_put(batch, sharding.batch_sharding(self.mesh))

    def update(self, batch) -> float:
        self.state, metrics = self._step(self.state, self._placed(batch))
        jax.block_until_ready((self.state, metrics))
        return float(metrics["loss"])

    def held_out(self, batches) -> float:
        """Returns the loss of masked tokens over `batches`."""
        sums = [self._sums(self.state.params, self._placed(batch)) for batch in batches]
        return sum(float(s["mlm_loss"]) for s in sums) / sum(float(s["mlm_count"]) for s in sums)


class Theirs:
    def __init__(self, config: TrainConfig, words: Path):
        with tempfile.TemporaryDirectory() as name:
            params = bert.init_params(config.model, config.head, seed=config.seed)
            huggingface.write(
                Path(name) / "model", params, config.model, tokenizer=words, head=config.head
            )
            self.model = transformers.ModernBertForMaskedLM.from_pretrained(
                Path(name) / "model", attn_implementation="sdpa", sparse_prediction=True
            )
        self.model.train()
        self._update = Updates(self.model, config, without_decay=lambda _, p: p.ndim <= 1)

    def loss(self, batch) -> tuple[torch.Tensor, int]:
        """Returns the mean loss of masked tokens, and their number."""
        longest = int((batch["sequence_ids"] > 0).sum(1).max())
        ids = np.array(batch["input_ids"])
        labels = np.full(ids.shape, -100)
        rows, places = np.nonzero(batch["mlm_weights"])
        labels[rows, batch["mlm_positions"][rows, places]] = batch["mlm_targets"][rows, places]
        out = self.model(
            torch.tensor(ids[:, :longest]).long(),
            attention_mask=torch.tensor(batch["sequence_ids"][:, :longest] > 0).long(),
            labels=torch.tensor(labels[:, :longest]),
        )
        return out.loss, len(rows)

    def update(self, batch, step: int = 0) -> float:
        loss, _ = self.loss(batch)
        self._update(loss, step)
        return loss.item()

    def held_out(self, batches) -> float:
        self.model.eval()
        with torch.no_grad():
            found = [self.loss(batch) for batch in batches]
        self.model.train()
        return sum(loss.item() * count for loss, count in found) / sum(n for _, n in found)


def pipeline_of(corpus: Corpus, config: TrainConfig) -> Pipeline:
    return Pipeline(
        corpus.train,
        phases=config.phases,
        seed=config.seed,
        collator=MLM,
        vocabulary=corpus.vocabulary,
        options=config.data,
    )


def real_tokens(batch) -> int:
    return int((batch["sequence_ids"] > 0).sum())


def speed(corpus: Corpus, length: int) -> None:
    packed, padded = (
        config_of(corpus, length, packed=packed, updates=10**6) for packed in (True, False)
    )
    rows = range(_TOKENS // length)
    full, ragged = pipeline_of(corpus, packed), pipeline_of(corpus, padded)
    ours = Ours(packed, full.batch_at(0, rows))
    theirs = Theirs(padded, corpus.directory / "tokenizer")
    rates: dict[str, list[float]] = {"ours": [], "torch": []}
    filled = []
    for turn in range(_TURNS + _WARM):
        here, there = full.batch_at(turn, rows), ragged.batch_at(turn, rows)
        began = time.perf_counter()
        ours.update(here)
        between = time.perf_counter()
        theirs.update(there)
        ended = time.perf_counter()
        if turn >= _WARM:
            rates["ours"].append(real_tokens(here) / (between - began))
            rates["torch"].append(real_tokens(there) / (ended - between))
            filled.append((real_tokens(here) / _TOKENS, real_tokens(there) / _TOKENS))
    medians = {side: statistics.median(values) for side, values in rates.items()}
    fill = np.mean(filled, 0)
    print(
        f"| {length} | {fill[0]:.1%} | {fill[1]:.1%} | {medians['ours']:,.0f} | "
        f"{medians['torch']:,.0f} | {medians['ours'] / medians['torch']:.2f} |",
        flush=True,
    )


def curve(corpus: Corpus, length: int, updates: int) -> None:
    config = config_of(corpus, length, packed=False, updates=updates)
    rows, pipeline = range(_TOKENS // length), pipeline_of(corpus, config)
    examples = EvaluationSet(
        corpus.validation,
        sequence_length=length,
        max_predictions=config.phases[0].max_predictions,
        num_examples=8 * len(rows),
        batch_size=len(rows),
        seed=EVALUATION_SEED,
        collator=MLM,
        vocabulary=corpus.vocabulary,
        options=config.data,
    )
    held_out = [examples.batch_at(index, rows) for index in range(examples.num_batches)]
    ours = Ours(config, pipeline.batch_at(0, rows))
    theirs = Theirs(config, corpus.directory / "tokenizer")
    print("\n| updates | ours | torch | difference |\n|---|---|---|---|")
    for step in range(updates):
        batch = pipeline.batch_at(step, rows)
        ours.update(batch)
        theirs.update(batch, step)
        if (step + 1) % (updates // _EVALUATIONS) == 0:
            here, there = ours.held_out(held_out), theirs.held_out(held_out)
            print(f"| {step + 1} | {here:.4f} | {there:.4f} | {there - here:+.4f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--updates", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    corpus = open_corpus(options.corpus)
    print("| length | packed rows full | padded rows full | ours | torch | ratio |")
    print("|---|---|---|---|---|---|")
    for length in options.lengths:
        speed(corpus, length)
    curve(corpus, options.lengths[0], options.updates)


if __name__ == "__main__":
    main()
