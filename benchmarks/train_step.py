"""Compares a training step on this machine with transformers in torch and keras-hub on JAX.

    pip install -e '.[bench]'
    python benchmarks/train_step.py [base|small] ...

Each side is a separate process that trains the same shape on rows of the same size, float32,
dropout 0.1, AdamW. They alternate after a few steps, so that a slowdown of the machine affects all
of them; the medians over the rounds are compared. torch uses SDPA attention and
`torch.optim.AdamW`. keras-hub only trains masked LM; ours and torch also train next-sentence
prediction. `products` is a lower bound: only the matmuls of our step, which computes the logits and
most of the last block only at predicted positions, with torch's library. No float32 step on this
machine can be faster, so torch's seconds divided by the seconds of `products` bound the possible
speedup. A peer that is not installed, or does not answer for ten minutes, is skipped with a
message.
"""

import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

sys.path.insert(0, str(Path(__file__).parents[1]))

SHAPES = {
    "small": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "rows": 32,
        "steps": 8,
    },
    "base": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "rows": 8,
        "steps": 3,
    },
}
LENGTH, PREDICTIONS, VOCAB = 128, 20, 30522
ROUNDS = 5
PATIENCE = 600  # seconds for a few steps of a peer; includes imports and compilation at first
PEERS = ("ours", "torch", "keras_hub", "products")


def random_batch(rows: int) -> dict:
    from tests.batches import random_batch

    return random_batch(rows=rows, length=LENGTH, predictions=PREDICTIONS, vocab_size=VOCAB)


def ours(shape: dict):
    from bert_jax.runtime.host_allocator import keep_freed_memory

    keep_freed_memory()  # as in `bert-jax pretrain`
    import jax

    from bert_jax.config import ComputeConfig, ModelConfig, PhaseConfig, TrainConfig
    from bert_jax.model import sharding
    from bert_jax.objectives.mlm_nsp import MLM_NSP
    from bert_jax.update.state import TrainState
    from bert_jax.update.step import compile_lowered, lower_train_step

    model = {k: v for k, v in shape.items() if k not in ("rows", "steps")}
    config = TrainConfig(
        model=ModelConfig(vocab_size=VOCAB, hidden_act="gelu", **model),
        compute=ComputeConfig(dtype="float32"),
        phases=(
            PhaseConfig(
                sequence_length=LENGTH,
                global_batch_size=shape["rows"],
                max_predictions=PREDICTIONS,
                steps=1_000_000,
            ),
        ),
    )
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    jax.set_mesh(mesh)
    state = TrainState.create(config).to_mesh(mesh)
    batch = jax.device_put(random_batch(shape["rows"]), sharding.batch_sharding(mesh))
    step = compile_lowered(lower_train_step(config, state, batch, objective=MLM_NSP))

    def run(steps: int) -> None:
        nonlocal state
        for _ in range(steps):
            state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))

    return run


def torch(shape: dict):
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.set_num_threads(os.cpu_count() or 1)
    model = {k: v for k, v in shape.items() if k not in ("rows", "steps")}
    net = BertForPreTraining(BertConfig(vocab_size=VOCAB, attn_implementation="sdpa", **model))
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01)
    batch = {name: torch.tensor(value) for name, value in random_batch(shape["rows"]).items()}
    labels = torch.full(batch["input_ids"].shape, -100, dtype=torch.long)
    rows, places = torch.nonzero(batch["mlm_weights"], as_tuple=True)
    targets = batch["mlm_targets"][rows, places].long()
    labels[rows, batch["mlm_positions"][rows, places].long()] = targets

    def run(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = net(
                input_ids=batch["input_ids"].long(),
                token_type_ids=batch["token_type_ids"].long(),
                attention_mask=batch["sequence_ids"].long(),
                labels=labels,
                next_sentence_label=batch["nsp_labels"][:, 0].long(),
            ).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        loss.item()

    return run


def keras_hub(shape: dict):
    os.environ["KERAS_BACKEND"] = "jax"
    import keras
    import keras_hub
    import numpy as np

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=VOCAB,
        num_layers=shape["num_hidden_layers"],
        num_heads=shape["num_attention_heads"],
        hidden_dim=shape["hidden_size"],
        intermediate_dim=shape["intermediate_size"],
        dropout=0.1,
        max_sequence_length=512,
    )
    net = keras_hub.models.BertMaskedLM(backbone=backbone, preprocessor=None)
    net.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.AdamW(1e-4, weight_decay=0.01, global_clipnorm=1.0),
        jit_compile=True,
    )
    batch = random_batch(shape["rows"])

    def run(steps: int) -> None:
        def repeat(name):
            return np.concatenate([batch[name]] * steps)

        inputs = {
            "token_ids": repeat("input_ids"),
            "segment_ids": repeat("token_type_ids"),
            "padding_mask": repeat("sequence_ids"),
            "mask_positions": repeat("mlm_positions"),
        }
        net.fit(
            inputs,
            repeat("mlm_targets"),
            sample_weight=repeat("mlm_weights"),
            batch_size=shape["rows"],
            shuffle=False,
            verbose=0,
        )

    return run


def products(shape: dict):
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    rows, width, inner = shape["rows"], shape["hidden_size"], shape["intermediate_size"]
    heads, layers = shape["num_attention_heads"], shape["num_hidden_layers"]
    tokens, masked, read = rows * LENGTH, rows * PREDICTIONS, PREDICTIONS + 1
    # (calls per step, batch dims, n, k, m) of n x k by k x m.
    forward = []
    for times, queries in ((layers - 1, LENGTH), (1, read)):
        forward += [
            (2 * times, (), tokens, width, width),
            (2 * times, (), rows * queries, width, width),
            (times, (), rows * queries, width, inner),
            (times, (), rows * queries, inner, width),
            (times, (rows * heads,), queries, width // heads, LENGTH),
            (times, (rows * heads,), queries, LENGTH, width // heads),
        ]
    forward += [
        (1, (), masked, width, width),
        (1, (), masked, width, VOCAB),
    ]
    work = []
    for times, batch, n, k, m in forward:
        x, w, y = torch.randn(*batch, n, k), torch.randn(*batch, k, m), torch.randn(*batch, n, m)
        pairs = [(x, w), (y, w.mT), (x.mT, y)]  # forward, and the derivatives of both operands
        work += [(times, a, b, a @ b) for a, b in pairs]

    def run(steps: int) -> None:
        for _ in range(steps):
            for times, a, b, out in work:
                for _ in range(times):
                    torch.matmul(a, b, out=out)

    return run


def serve(make: Callable[[], Callable[[int], None]], *, warm: int, lead: int = 0) -> None:
    """Runs the number of steps that stdin requests, and prints the seconds per step to stdout.

    `warm` steps precede the first request, and `lead` unmeasured steps each request.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries out of the answers
    run = make()
    run(warm)
    for line in sys.stdin:
        steps = int(line)
        run(lead)
        start = time.perf_counter()
        run(steps)
        print((time.perf_counter() - start) / steps, file=answers, flush=True)


class Peer:
    """A process that trains. If it ends or does not answer, it is skipped, with the reason."""

    def __init__(
        self,
        peer: str,
        name: str,
        *,
        script: str = __file__,
        environment: Mapping[str, str] = MappingProxyType({"JAX_PLATFORMS": "cpu"}),
    ):
        self.name = peer
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in `end`)
        self._process = subprocess.Popen(
            [sys.executable, script, "--worker", peer, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        )

    def turn(self, steps: int) -> float:
        """Returns the seconds of a step. Raises LeftOut."""
        sent, answers = self._process.stdin, self._process.stdout
        assert sent is not None and answers is not None
        with contextlib.suppress(BrokenPipeError):
            sent.write(f"{steps}\n".encode())
            sent.flush()
        if not select.select([answers], [], [], PATIENCE)[0]:
            raise LeftOut(f"no answer for {PATIENCE} s")
        if not (line := answers.readline()):
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines() or ["no word"]
            raise LeftOut(f"it ended: {lines[-1]}")
        return float(line)

    def said(self, beginning: str) -> str:
        """Returns the last line of stderr that starts with a prefix, or "{}"."""
        self._errors.seek(0)
        found = [x for x in self._errors.read().splitlines() if x.startswith(beginning)]
        return found[-1] if found else "{}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()


class LeftOut(Exception):
    """The reason why a peer is not compared."""


def compare(name: str) -> dict[str, float]:
    peers = [Peer(peer, name) for peer in PEERS]
    seconds: dict[str, list[float]] = {}
    print(f"{name}: {', '.join(PEERS)} import and compile", file=sys.stderr, flush=True)
    for number in range(ROUNDS + 1):  # all have compiled before the first round
        if not peers:
            break
        for peer in list(peers):
            try:
                found = peer.turn(SHAPES[name]["steps"])
            except LeftOut as why:
                print(f"{name}: {peer.name} is skipped: {why}", file=sys.stderr, flush=True)
                peers.remove(peer)
                peer.end()
                seconds.pop(peer.name, None)
                continue
            if number:
                seconds.setdefault(peer.name, []).append(found)
        shown = ", ".join(f"{peer} {values[-1]:.3f} s" for peer, values in seconds.items())
        line = f"round {number} of {ROUNDS}: {shown}" if number else "all have compiled"
        print(f"{name}: {line}", file=sys.stderr, flush=True)
    for peer in peers:
        peer.end()
    return {peer: statistics.median(values) for peer, values in seconds.items()}


def main(names: list[str]) -> None:
    print(f"{'shape':8} {'peer':10} {'s/step':>8} {'tokens/s':>10} {'ours is':>9}", flush=True)
    for name in names or list(SHAPES):
        medians = compare(name)
        for peer, seconds in medians.items():
            tokens = SHAPES[name]["rows"] * LENGTH / seconds
            ratio = f"{seconds / medians['ours']:8.2f}x" if "ours" in medians else f"{'?':>9}"
            print(f"{name:8} {peer:10} {seconds:8.3f} {tokens:10,.0f} {ratio}", flush=True)
        print(json.dumps({"shape": name, **medians}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        make, shape = globals()[sys.argv[2]], SHAPES[sys.argv[3]]
        serve(lambda: make(shape), warm=2)
    else:
        main(sys.argv[1:])
