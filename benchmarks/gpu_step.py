"""Compares a training step on a GPU with transformers in torch, in bfloat16.

    python benchmarks/gpu_step.py [SHAPE ...] [--attention auto] [--peers ours torch torch_eager]

Both sides train the same model on the same number of tokens, in rows without padding, with weights
and moments in float32. Ours has packed rows with a mean document length of 250 tokens, or one
sentence pair per row for BERT. torch has one document per row, SDPA attention without a mask,
autocast to bfloat16, `torch.compile` if possible, and the fused `torch.optim.AdamW`. Each side is
a separate process; they compile at the same time, and are measured in turn.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from train_step import LeftOut, Peer, serve

# A config, the length of its rows and their number.
SHAPES = {
    "modernbert_base_50b-1024": ("modernbert_base_50b", 1024, 16),
    "modernbert_base_50b-8192": ("modernbert_base_50b", 8192, 2),
    "bert_base-128": ("bert_base", 128, 256),
    "bert_base-512": ("bert_base", 512, 64),
    "bert_large-128": ("bert_large", 128, 128),
    "bert_large-512": ("bert_large", 512, 32),
}
PEERS = ("ours", "torch", "torch_eager")
ROUNDS, STEPS, WARM = 5, 5, 3


def config_of(shape: str, attention: str):
    from bert_jax.config_loader import load_config

    name, length, rows = SHAPES[shape]
    masks = ', "masked_lm_prob": 0.3' if name.startswith("modern") else ""
    phase = f'{{"sequence_length": {length}, "steps": 1000, "global_batch_size": {rows}{masks}}}'
    return load_config(
        name,
        [
            f"phases=[{phase}]",
            "optimizer.warmup_steps=10",
            "optimizer.gradient_accumulation_steps=1",
            "compute.dtype=bfloat16",
            f"compute.attention={attention}",
        ],
    )


def batch_of(config) -> dict[str, np.ndarray]:
    """Returns a full batch of random tokens."""

    (phase,), draw = config.phases, np.random.default_rng(0)
    rows, length, most = phase.global_batch_size, phase.sequence_length, phase.max_predictions
    from bert_jax.registry import OBJECTIVES

    words, objective = config.model.vocab_size, OBJECTIVES[config.objective]
    starts = np.zeros((rows, length), np.int32)
    is_packed = config.data.packing != "none"
    if is_packed:
        starts = (draw.random((rows, length)) < 1 / 250).astype(np.int32)
    starts[:, 0] = 1
    ids = np.cumsum(starts, axis=1).astype(np.int32)
    places = np.arange(length)[None] - np.maximum.accumulate(starts * np.arange(length), axis=1)
    masked = np.sort(np.stack([draw.permutation(length)[:most] for _ in range(rows)]), axis=1)
    known = {
        "input_ids": draw.integers(1000, words, (rows, length)),
        "token_type_ids": np.tile(np.arange(length) >= length // 2, (rows, 1)),
        "position_ids": places,
        "sequence_ids": ids,
        "mlm_positions": masked,
        "mlm_targets": draw.integers(1000, words, (rows, most)),
        "mlm_weights": np.ones((rows, most)),
        "nsp_positions": np.zeros((rows, 1)),
        "nsp_labels": draw.integers(0, 2, (rows, 1)),
        "nsp_weights": np.ones((rows, 1)),
    }
    return {name: known[name].astype(field.dtype) for name, field in objective.fields.items()}


def ours(shape: str, attention: str):
    import jax

    from bert_jax.model import sharding
    from bert_jax.model.attention.implementation import serving
    from bert_jax.registry import OBJECTIVES
    from bert_jax.update.flops import peak_flops, train_flops
    from bert_jax.update.state import TrainState
    from bert_jax.update.step import compile_lowered, lower_train_step

    config = config_of(shape, attention)
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    jax.set_mesh(mesh)
    state = TrainState.create(config).to_mesh(mesh)
    batch = jax.device_put(batch_of(config), sharding.batch_sharding(mesh))
    objective = OBJECTIVES[config.objective]
    step = compile_lowered(lower_train_step(config, state, batch, objective=objective))
    flops = train_flops(objective, config.model, config.phases[0])
    length, kind = config.phases[0].sequence_length, jax.devices()[0].device_kind
    chosen = serving(
        attention, config.model, length=length, device_kind=kind, dtype=config.compute.dtype
    )
    known = {"flops": flops, "peak": peak_flops("bfloat16"), "attention": chosen, "device": kind}
    print(json.dumps(known), file=sys.stderr, flush=True)

    def run(steps: int) -> None:
        nonlocal state
        for _ in range(steps):
            state, metrics = step(state, batch)
        assert np.isfinite(jax.device_get(metrics["loss"]))
        jax.block_until_ready(state)

    return run


def torch(shape: str, attention: str):
    return _torch(shape, is_compiled=True)


def torch_eager(shape: str, attention: str):
    return _torch(shape, is_compiled=False)


def _torch(shape: str, *, is_compiled: bool):
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    config = config_of(shape, "auto")
    model = config.model
    shared = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "intermediate_size": model.intermediate_size,
        "max_position_embeddings": model.max_position_embeddings,
        "attn_implementation": "sdpa",
    }
    batch = {k: torch.tensor(v, device=device) for k, v in batch_of(config).items()}
    labels = torch.full(batch["input_ids"].shape, -100, dtype=torch.long, device=device)
    labels.scatter_(1, batch["mlm_positions"].long(), batch["mlm_targets"].long())
    given = {"input_ids": batch["input_ids"].long(), "labels": labels}
    if shape.startswith("modern"):
        net = transformers.ModernBertForMaskedLM(
            transformers.ModernBertConfig(
                **shared, local_attention=model.attention_window, sparse_prediction=not is_compiled
            )
        )
    else:
        net = transformers.BertForPreTraining(transformers.BertConfig(**shared))
        given["token_type_ids"] = batch["token_type_ids"].long()
        given["next_sentence_label"] = batch["nsp_labels"][:, 0].long()
    net = net.to(device).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    called = torch.compile(net) if is_compiled else net

    def run(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = called(**given).loss
            loss.backward()
            if not shape.startswith("modern"):
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        assert np.isfinite(loss.item())  # also waits for the result

    return run


def compare(shapes: list[str], attention: str, names: list[str]) -> None:
    """Compares both sides for shapes with processes that exist at the same time."""
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    peers = {
        (shape, peer): Peer(peer, f"{shape} {attention}", script=__file__, environment=environment)
        for shape in shapes
        for peer in names
    }
    seconds: dict[tuple, list[float]] = {}
    for each, process in list(peers.items()):  # all compile before the first measurement
        try:
            process.turn(1)
        except LeftOut as why:
            print(f"{each}: skipped: {why}", file=sys.stderr, flush=True)
            peers.pop(each).end()
    print(f"{shapes}: all have compiled", file=sys.stderr, flush=True)
    for _ in range(ROUNDS):
        for each, process in peers.items():
            seconds.setdefault(each, []).append(process.turn(STEPS))
    facts = {
        shape: json.loads(process.said("{"))
        for (shape, peer), process in peers.items()
        if peer == "ours"
    }
    for process in peers.values():
        process.end()
    for shape in shapes:
        _, length, rows = SHAPES[shape]
        medians = {p: statistics.median(t) for (s, p), t in seconds.items() if s == shape}
        known = facts.get(shape, {})
        for peer, median in medians.items():
            of_peak = known.get("flops", 0) / median / known.get("peak", 1)
            print(
                f"| {shape} | {peer} | {1000 * median:.1f} | {rows / median:,.0f} | "
                f"{rows * length / median:,.0f} | {of_peak:.1%} | "
                f"{median / medians.get('ours', float('nan')):.2f} | "
                f"{known.get('attention') if peer == 'ours' else ''} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument(
        "--at-once", type=int, default=1, help="number of shapes with processes at the same time"
    )
    options = parser.parse_args()
    print("| shape | side | ms/step | rows/s | tokens/s | of the peak | times ours | attention |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for first in range(0, len(options.shapes), options.at_once):
        compare(options.shapes[first : first + options.at_once], options.attention, options.peers)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        make, given = globals()[sys.argv[2]], sys.argv[3].split()
        serve(lambda: make(*given), warm=WARM, lead=1)
    else:
        main()
