"""Writes mixers.npz: what torch's Conv1d and GRU compute, and every gradient of it.

    python -m tests.golden.make_mixers

In double precision, by torch 2.13. Each sequence goes through torch alone. Parameters have torch's
names and layout, but for a dot, which is an underscore here.
"""

from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "mixers.npz"
WIDTH, KERNEL_SIZE, LENGTHS = 6, 5, (4, 7)


def main() -> None:
    import torch

    torch.manual_seed(0)
    convolution = torch.nn.Conv1d(WIDTH, WIDTH, KERNEL_SIZE, padding=KERNEL_SIZE // 2)
    modules = {
        "convolution": convolution,
        "gru": torch.nn.GRU(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True),
    }
    inputs = torch.randn(sum(LENGTHS), WIDTH, dtype=torch.float64)
    weights = torch.randn(sum(LENGTHS), WIDTH, dtype=torch.float64)
    found = {"inputs": inputs.numpy(), "weights": weights.numpy()}
    for name, module in modules.items():
        module.double()
        x_TD = inputs.clone().requires_grad_()
        outputs = []
        for x_LD in x_TD.split(LENGTHS):
            if name == "gru":
                outputs.append(module(x_LD[None])[0][0])
            else:
                outputs.append(module(x_LD.T[None])[0].T)
        y_TD = torch.cat(outputs)
        (y_TD * weights).sum().backward()
        found[f"{name}/outputs"] = y_TD.detach().numpy()
        found[f"{name}/gradient_inputs"] = x_TD.grad.numpy()
        for each, parameter in module.named_parameters():
            each = each.replace(".", "_")
            found[f"{name}/{each}"] = parameter.detach().numpy()
            found[f"{name}/gradient_{each}"] = parameter.grad.numpy()
    np.savez_compressed(FILE, **{name: array.astype(np.float32) for name, array in found.items()})


if __name__ == "__main__":
    main()
