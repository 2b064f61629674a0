"""Writes modernbert_training.npz: 100 updates of a ModernBERT in torch, with a change of phase.

    pip install torch==2.13.0 transformers==4.57.6 torch-optimi==0.3.3
    python -m tests.golden.make_modernbert_training

The model is transformers' ModernBertForMaskedLM, the optimiser StableAdamW of torch-optimi with a
decay relative to the rate (`decouple_lr`), as ModernBERT was trained (AnswerDotAI/ModernBERT
src/optimizer.py). At the change moments are kept, and length, rate, schedule and theta are others
(its `reset_time` and `restart_override`). All of it is computed in float64.
"""

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import ComputeConfig, DataConfig, PhaseConfig, TrainConfig
from bert_jax.interchange import huggingface
from bert_jax.update.schedules import Constant, WarmupStableDecay
from bert_jax.update.stable_adamw import StableAdamW
from tests.golden.make_modernbert import HEAD, MODEL, params, sample
from tests.models import vocabulary

FILE = Path(__file__).parent / "modernbert_training.npz"
_ROWS, _PREDICTIONS, _MASK = 4, 12, 4
# Their decay is this times the rate's share of its peak.
_DECAY, _RATES, _STEPS, _WARMUP, _FLOOR = 1e-3, (2e-3, 1e-3), (60, 40), 10, 0.001
_THETA = 4_000.0
CONFIG = TrainConfig(
    objective="mlm",
    model=MODEL,
    head=HEAD,
    compute=ComputeConfig(dtype="float32"),
    data=DataConfig(sequence_format="documents"),
    optimizer=StableAdamW(
        joined_rms=True,
        schedule=Constant(),
        learning_rate=_RATES[0],
        warmup_steps=_WARMUP,
        beta2=0.98,
        weight_decay=_DECAY / _RATES[0],
        clip_norm=0.0,
    ),
    phases=(
        PhaseConfig(
            sequence_length=64,
            steps=_STEPS[0],
            global_batch_size=_ROWS,
            max_predictions=_PREDICTIONS,
        ),
        PhaseConfig(
            sequence_length=96,
            steps=_STEPS[1],
            global_batch_size=_ROWS,
            max_predictions=_PREDICTIONS,
            rope_theta=_THETA,
            learning_rate=_RATES[1],
            weight_decay=_DECAY / _RATES[1],
            schedule=WarmupStableDecay(decay_steps=_STEPS[1], min_lr_ratio=_FLOOR),
            warmup_steps=0,
        ),
    ),
)


def batch(step: int) -> dict[str, np.ndarray]:
    """Rows of a chain of words with the masks of an update, all of one length."""
    draw = np.random.default_rng(step)
    length = CONFIG.phases[CONFIG.phase_of(step)].sequence_length
    first, jumps = draw.integers(5, 60, (_ROWS, 1)), draw.integers(1, 4, (_ROWS, length))
    ids = (5 + (first + jumps.cumsum(1)) % 55).astype(np.int32)
    places = np.stack([draw.permutation(length)[:_PREDICTIONS] for _ in range(_ROWS)])
    rows = np.arange(_ROWS)[:, None]
    masked = ids.copy()
    masked[rows, places] = _MASK
    return {
        "input_ids": masked,
        "token_type_ids": np.zeros_like(ids),
        "position_ids": np.tile(np.arange(length, dtype=np.int32), (_ROWS, 1)),
        "sequence_ids": np.ones_like(ids),
        "mlm_positions": places.astype(np.int32),
        "mlm_targets": ids[rows, places],
        "mlm_weights": np.ones((_ROWS, _PREDICTIONS), np.float32),
    }


def _rate(step: int) -> float:
    if step < _STEPS[0]:
        return _RATES[0] * min(1.0, step / _WARMUP)
    done = (step - _STEPS[0]) / _STEPS[1]
    return _RATES[1] * (_FLOOR + (1 - _FLOOR) * (1 - math.sqrt(done)))


def main() -> None:
    import optimi
    import torch
    import transformers

    torch.set_num_threads(1)
    tree = params()

    def loaded(model: Any) -> Any:
        with tempfile.TemporaryDirectory() as temporary:
            folder, words = Path(temporary), vocabulary(Path(temporary) / "words")
            huggingface.write(folder / "ours", tree, model, tokenizer=words, head=HEAD)
            return transformers.ModernBertForMaskedLM.from_pretrained(
                folder / "ours", attn_implementation="eager"
            ).double()

    model, longer = loaded(MODEL), loaded(dataclasses.replace(MODEL, rope_theta=_THETA))
    named = list(model.named_parameters())
    decayed = [p for name, p in named if p.ndim > 1 and not name.endswith(".bias")]
    others = [p for name, p in named if p.ndim <= 1 or name.endswith(".bias")]
    optimizer = optimi.StableAdamW(
        [
            {"params": decayed, "weight_decay": _DECAY},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=_RATES[0],
        betas=(0.9, 0.98),
        eps=1e-6,
        decouple_lr=True,
        max_lr=_RATES[0],
        kahan_sum=False,
    )
    losses = []
    for step in range(sum(_STEPS)):
        if step == _STEPS[0]:
            for layer, other in zip(model.model.layers, longer.model.layers, strict=True):
                layer.attn.rotary_emb = other.attn.rotary_emb
        for group in optimizer.param_groups:
            group["lr"], group["max_lr"] = _rate(step), _RATES[step >= _STEPS[0]]
        found = batch(step)
        labels = np.full(found["input_ids"].shape, -100)
        labels[np.arange(_ROWS)[:, None], found["mlm_positions"]] = found["mlm_targets"]
        ids = torch.tensor(found["input_ids"]).long()
        loss = model(ids, labels=torch.tensor(labels).long()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    parts = {"losses": np.array(losses)}
    for name, parameter in named:
        weights = parameter.detach().numpy()
        parts[f"weights.{name}"] = sample(weights)
        parts[f"largest.{name}"] = np.abs(weights).max().astype(np.float32)
    np.savez_compressed(FILE, **parts)


if __name__ == "__main__":
    main()
