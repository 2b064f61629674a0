"""Compares fine-tuning with transformers in torch: same rows, order, learning rates and weights.

    python benchmarks/finetune_against_torch.py TASK FOLDER ENCODER WORKDIR [options]

FOLDER has GLUE's files for `sst2`, `cola` and `stsb`, `train.json` and `dev.json` for `squad`,
WNUT-17's files for `ner`. For each seed, the two sides train in alternating steps, on the same
batches, with the same encoder and the same new head, and AdamW with bias correction. Both are
scored by `bert_jax.tasks`. With `--dropout 0`, the two losses of a step may only differ by
rounding. Needs the `parity` extra. Prints a table, and writes WORKDIR/TASK.json after every seed;
the same command, or one with more seeds, resumes from this file.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from torch_updates import Updates
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

from bert_jax.data.tasks.encode_rows import Features, training_rows
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.inference.forward import Forward
from bert_jax.interchange import huggingface_config
from bert_jax.interchange.families import BERT_FAMILY
from bert_jax.model import sharding
from bert_jax.objectives.task import TaskObjective
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.registry import TASKS
from bert_jax.tasks.finetune import Settings, _beginning, training_batches
from bert_jax.tasks.sweep import _config
from bert_jax.tasks.task_data import Sources, load_task
from bert_jax.update.step import compile_lowered, lower_train_step

# Files of tasks other than GLUE.
FILES = {"squad": ("train.json", "dev.json"), "ner": ("wnut17train.conll", "emerging.dev.conll")}
# Arguments that do not change the run of a seed.
_FREE = ("seeds", "workdir")
MODELS = {
    "sequence_logits": BertForSequenceClassification,
    "token_logits": BertForTokenClassification,
    "span_logits": BertForQuestionAnswering,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=("sst2", "cola", "stsb", *FILES))
    parser.add_argument("data", type=Path)
    parser.add_argument("encoder", type=Path)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--train-rows", type=int)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--steps", type=int, help="stop after N steps, without scoring")
    parser.add_argument("--dropout", type=float, default=0.1)
    arguments = parser.parse_args()
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        source = load_checkpoint(arguments.encoder, mesh=mesh, allow_missing_heads=True)
        sources = sources_of(arguments)
        words = load_tokenizer(source.tokenizer)
        data = load_task(TASKS[arguments.task].spec, sources, words, length=arguments.length)
        arguments.workdir.mkdir(parents=True, exist_ok=True)
        path = arguments.workdir / f"{arguments.task}.json"
        recipe = {name: str(value) for name, value in vars(arguments).items() if name not in _FREE}
        runs = runs_of(path, recipe)
        if runs:
            report(runs)
        for seed in range(len(runs), arguments.seeds):
            runs.append(run_seed(arguments, source, data, seed, mesh))
            path.write_text(json.dumps({"recipe": recipe, "runs": runs}, indent=2) + "\n")
            report(runs)


def runs_of(path: Path, recipe: dict) -> list[dict]:
    """Returns the runs that were finished with this recipe."""
    if not path.is_file():
        return []
    stored = json.loads(path.read_text())
    if stored["recipe"] != recipe:
        raise SystemExit(f"{path} has another recipe, {stored['recipe']}; choose another WORKDIR")
    return stored["runs"]


def sources_of(arguments) -> Sources:
    if arguments.task not in FILES:
        return Sources(data=str(arguments.data), train_rows=arguments.train_rows)
    train, dev = (arguments.data / name for name in FILES[arguments.task])
    return Sources(train=train, dev=dev, train_rows=arguments.train_rows)


def run_seed(arguments, source, data, seed: int, mesh) -> dict:
    """Trains both sides step by step; returns losses, seconds per step, scores."""
    rate_of_dropout = arguments.dropout
    overrides = ["optimizer.bias_correction=true"] + [
        f"model.{name}={rate_of_dropout}"
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")
    ]
    settings = Settings(
        length=arguments.length,
        batch_size=arguments.batch_size,
        learning_rate=arguments.learning_rate,
        epochs=arguments.epochs,
        seed=seed,
        overrides=tuple(overrides),
    )
    config = _config(source, data, settings)
    state = _beginning(config, source).to_mesh(mesh)
    theirs = torch_model(state.params, config)
    size, update = config.phases[0].global_batch_size, Updates(theirs, config)
    torch.manual_seed(seed)
    objective, losses = TaskObjective(config.head), {"ours": [], "torch": []}
    # One step for each shape of a batch.
    steps: dict[tuple, Any] = {}
    seconds: dict[str, list[float]] = {"ours": [], "torch": []}
    features = data.train.features
    batches = training_batches(features, config, mesh)
    layout = sharding.batch_sharding(mesh)
    tokens = {"real": 0, "ours": 0, "torch": 0}
    total = arguments.steps or config.total_steps
    for step in range(total):
        chosen = training_rows(step, rows=len(features), batch_size=size, seed=seed)
        batch = jax.device_put(batches(chosen), layout)
        shape = tuple(array.shape for _, array in sorted(batch.items()))
        if shape not in steps:
            lowered = lower_train_step(config, state, batch, objective=objective)
            steps[shape] = compile_lowered(lowered)
        began = time.perf_counter()
        batch = jax.device_put(batches(chosen), layout)
        state, values = steps[shape](state, batch)
        losses["ours"].append(float(values["loss"]))
        jax.block_until_ready(state)
        between = time.perf_counter()
        # Like its data collator: as long as the longest row of the batch.
        length = int(features.lengths[chosen].max())
        loss = torch_loss(theirs, features, chosen, length)
        update(loss, step)
        losses["torch"].append(loss.item())
        seconds["torch"].append(time.perf_counter() - between)
        seconds["ours"].append(between - began)
        tokens["real"] += int(features.lengths[chosen].sum())
        tokens["ours"] += batch["input_ids"].size
        tokens["torch"] += len(chosen) * length
        if step % 20 == 19 or step + 1 == total:
            means = (f"{side} {statistics.mean(losses[side][-20:]):.4f}" for side in losses)
            print(f"seed {seed}, step {step + 1} of {total}: loss {', '.join(means)}", flush=True)
    means = {side: count / total for side, count in tokens.items()}
    run = {"seed": seed, "losses": losses, "seconds": seconds, "tokens_of_a_batch": means}
    if arguments.steps is None:
        (split,) = data.dev.values()
        forward = Forward(config, objective.output, batch_size=64)
        ours = forward(state.params, split.features)
        predicted = {"ours": ours, "torch": torch_outputs(theirs, split.features)}
        run["scores"] = {
            side: data.task.score(split, outputs) for side, outputs in predicted.items()
        }
        print(f"seed {seed}: {run['scores']}", flush=True)
    return run


def torch_model(params, config) -> torch.nn.Module:
    described = huggingface_config.config_of(config.model, config.head)
    described = {k: v for k, v in described.items() if k not in ("architectures", "torch_dtype")}
    model = MODELS[TaskObjective(config.head).output](BertConfig(**described))
    tensors = {
        name: torch.from_numpy(np.array(tensor))
        for name, tensor in BERT_FAMILY.to_tensors(params).items()
    }
    left = model.load_state_dict(tensors, strict=False)
    assert not left.missing_keys and not left.unexpected_keys, left
    return model.train()


def torch_inputs(features, rows, length: int) -> dict[str, torch.Tensor]:
    mask = np.arange(length) < features.lengths[rows, None]
    return {
        "input_ids": torch.from_numpy(features.input_ids[rows, :length]).long(),
        "token_type_ids": torch.from_numpy(features.token_type_ids[rows, :length]).long(),
        "attention_mask": torch.from_numpy(mask).long(),
    }


def torch_loss(model, features: Features, rows, length: int) -> torch.Tensor:
    """Returns the loss of transformers' models for these labels; for spans, without the padding.

    transformers counts padding as possible positions of an answer, so that the loss of a row
    depends on the longest row of its batch. bert-jax does not.
    """
    inputs = torch_inputs(features, rows, length)
    labels = torch.from_numpy(features.labels[rows])
    if isinstance(model, BertForQuestionAnswering):
        start, end = labels.long().unbind(dim=1)
        outputs, is_padding = model(**inputs), inputs["attention_mask"] == 0
        scores = (outputs.start_logits, outputs.end_logits)
        first, last = (found.masked_fill(is_padding, -torch.inf) for found in scores)
        cross_entropy = torch.nn.functional.cross_entropy
        return (cross_entropy(first, start) + cross_entropy(last, end)) / 2
    if isinstance(model, BertForTokenClassification):
        has_label = torch.from_numpy(features.weights[rows]) > 0
        known = labels.long().where(has_label, -100)[:, :length]
        return model(**inputs, labels=known.contiguous()).loss
    logits = model(**inputs).logits
    if labels.dtype == torch.float32:
        return torch.mean((logits[:, 0] - labels) ** 2)
    return torch.nn.functional.cross_entropy(logits, labels.long())


@torch.no_grad()
def torch_outputs(model, features: Features) -> np.ndarray:
    """Returns outputs like `Forward`: for tokens, 0 beyond the longest row of a batch."""
    model.eval()
    found = None
    for start in range(0, len(features), 64):
        rows = np.arange(start, min(start + 64, len(features)))
        length = int(features.lengths[rows].max())
        outputs = model(**torch_inputs(features, rows, length))
        if isinstance(model, BertForQuestionAnswering):
            logits = torch.stack([outputs.start_logits, outputs.end_logits], dim=-1).numpy()
        else:
            logits = outputs.logits.numpy()
        if found is None:
            places = features.input_ids.shape[1:] if logits.ndim == 3 else ()
            found = np.zeros((len(features), *places, logits.shape[-1]), np.float32)
        found[(rows, slice(length))[: logits.ndim - 1]] = logits
    return found


def report(runs: list[dict]) -> None:
    medians = {}
    for side in ("ours", "torch"):
        seconds = [run["seconds"][side] for run in runs]
        # The first steps compile.
        medians[side] = statistics.median(s for all_ in seconds for s in all_[5:] or all_)
    print(
        f"seconds per step: ours {medians['ours']:.3f}, torch {medians['torch']:.3f}, "
        f"ratio {medians['torch'] / medians['ours']:.2f}"
    )
    shown = (f"{side} {count:.0f}" for side, count in runs[-1]["tokens_of_a_batch"].items())
    print(f"tokens per batch: {', '.join(shown)}")
    apart = max(
        abs(a - b)
        for run in runs
        for a, b in list(zip(run["losses"]["ours"], run["losses"]["torch"], strict=True))[:50]
    )
    print(f"losses of the first 50 steps: largest difference {apart:.1e}")
    if "scores" not in runs[0]:
        return
    for metric in runs[0]["scores"]["ours"]:
        sides = {side: [run["scores"][side][metric] for run in runs] for side in ("ours", "torch")}
        means = {side: statistics.mean(values) for side, values in sides.items()}
        print(f"{metric}: ours {means['ours']:.4f}, torch {means['torch']:.4f}  {sides}")


if __name__ == "__main__":
    main()
