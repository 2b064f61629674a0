"""Makes optimizers.npz: parameters after 200 updates by the optimisers of others.

    pip install torch==2.13.0 torch-optimi==0.3.3 transformers
    python -m tests.golden.make_optimizers

StableAdamW is that of torch-optimi, Muon that of torch (its products in float32 instead of
bfloat16, to be comparable beyond three digits). LAMB's is the
formula of google-research/albert lamb_optimizer.py in float64.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tests.optimizer_gradients import RATES, STEPS, WEIGHT_DECAY, gradients, parameters, sampled

BETAS, EPSILON = (0.9, 0.98), 1e-6


def in_torch(make) -> dict[str, np.ndarray]:
    import torch

    torch.set_num_threads(1)
    params = {name: torch.nn.Parameter(torch.tensor(p)) for name, p in parameters().items()}
    optimizers = make(params)
    for step in range(STEPS):
        for name, gradient in gradients(step).items():
            params[name].grad = torch.tensor(gradient)
        for optimizer in optimizers:
            optimizer.step()
    return {name: param.detach().numpy() for name, param in params.items()}


def _groups(params: dict) -> list[dict]:
    """Returns decay for kernels and embeddings alone."""
    decayed = [p for name, p in params.items() if name.endswith(("kernel", "embedding"))]
    others = [p for name, p in params.items() if name.endswith(("bias", "scale"))]
    return [
        {"params": decayed, "weight_decay": WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]


def stable_adamw() -> dict[str, np.ndarray]:
    import optimi

    def make(params):
        options = {"lr": RATES["stable_adamw"], "betas": BETAS, "eps": EPSILON}
        return [optimi.StableAdamW(_groups(params), **options)]

    return in_torch(make)


def muon() -> dict[str, np.ndarray]:
    import torch

    def make(params):
        hidden = [p for name, p in params.items() if "layer_" in name and name.endswith("kernel")]
        rest = {name: p for name, p in params.items() if not any(p is h for h in hidden)}
        options = {"lr": RATES["muon"], "momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"}
        return [
            torch.optim.Muon(hidden, weight_decay=WEIGHT_DECAY, **options),
            torch.optim.AdamW(_groups(rest), lr=RATES["muon"], betas=BETAS, eps=EPSILON),
        ]

    before = torch.Tensor.bfloat16
    torch.Tensor.bfloat16 = torch.Tensor.float
    try:
        return in_torch(make)
    finally:
        torch.Tensor.bfloat16 = before


def lamb() -> dict[str, np.ndarray]:
    params = {name: p.astype(np.float64) for name, p in parameters().items()}
    m, v = ({name: np.zeros_like(p) for name, p in params.items()} for _ in range(2))
    for step in range(STEPS):
        for name, gradient in gradients(step).items():
            g = gradient.astype(np.float64)
            m[name] = BETAS[0] * m[name] + (1 - BETAS[0]) * g
            v[name] = BETAS[1] * v[name] + (1 - BETAS[1]) * g * g
            update, ratio = m[name] / (np.sqrt(v[name]) + EPSILON), 1.0
            if name.endswith(("kernel", "embedding")):
                update = update + WEIGHT_DECAY * params[name]
                norms = np.linalg.norm(params[name]), np.linalg.norm(update)
                ratio = norms[0] / norms[1] if min(norms) > 0 else 1.0
            params[name] = params[name] - RATES["lamb"] * ratio * update
    return params


def main() -> None:
    made: dict[str, Any] = {
        f"{make.__name__}/{name}": sampled(param.astype(np.float32))
        for make in (stable_adamw, muon, lamb)
        for name, param in make().items()
    }
    np.savez_compressed(Path(__file__).with_name("optimizers.npz"), **made)


if __name__ == "__main__":
    main()
