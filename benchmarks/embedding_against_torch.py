"""Compares training on pairs of texts with sentence-transformers: scores, and seconds per step.

    python benchmarks/embedding_against_torch.py similarity STSB_FOLDER MODEL WORKDIR [options]
    python benchmarks/embedding_against_torch.py step PAIRS.jsonl|TEXT_FILE MODEL WORKDIR [options]

MODEL is a directory of sentence-transformers. `similarity` trains MODEL with CoSENT on GLUE's STS-B
(train.tsv.gz, dev.tsv.gz), once per seed on each side, with the same rows, schedule and AdamW, and
prints Spearman's correlation on the development set. A finished seed in WORKDIR is not trained
again. `step` times the training step of InfoNCE on both sides in turns: PAIRS has objects with
`query` and `positive`; a paragraph of TEXT_FILE, one per line, is cut into a query and a document
of fixed lengths. Needs the extra `parity`, and `similarity` the packages `datasets` and
`accelerate`.
"""

import argparse
import csv
import dataclasses
import gzip
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bert_jax.runtime.host_allocator import keep_freed_memory

keep_freed_memory()  # as in `bert-jax finetune`, before importing jax; also applies to torch

import jax  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.sentence_transformer import losses  # noqa: E402

from bert_jax.data.tokenizer.tokenizer import load_tokenizer  # noqa: E402
from bert_jax.model import sharding  # noqa: E402
from bert_jax.objectives.contrastive import PairObjective  # noqa: E402
from bert_jax.pretrained.load import load_checkpoint  # noqa: E402
from bert_jax.registry import TASKS  # noqa: E402
from bert_jax.tasks.finetune import Settings, _beginning, training_batches  # noqa: E402
from bert_jax.tasks.scores import spearman  # noqa: E402
from bert_jax.tasks.sweep import _config  # noqa: E402
from bert_jax.tasks.task_data import Sources, load_task  # noqa: E402
from bert_jax.update.step import compile_lowered, lower_train_step  # noqa: E402

TEXTS = ("sentence1", "sentence2")
# The words of a query and of a document of `step`: 34 and at least 128 tokens.
QUERY, DOCUMENT = 24, 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("similarity", "step"))
    parser.add_argument("data", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train-rows", type=int)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    arguments.workdir.mkdir(parents=True, exist_ok=True)
    (similarity if arguments.what == "similarity" else step)(arguments)


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# --- similarity


def stsb(path: Path) -> list[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [{text: row[text] for text in TEXTS} | {"score": row["score"]} for row in rows]


def similarity(arguments) -> None:
    dev = stsb(arguments.data / "dev.tsv.gz")
    held_out = {tuple(" ".join(row[text].split()) for text in TEXTS) for row in dev}
    train = [
        row
        for row in stsb(arguments.data / "train.tsv.gz")
        if tuple(" ".join(row[text].split()) for text in TEXTS) not in held_out
    ]
    # The file is in the order of its sources.
    train = random.Random(0).sample(train, arguments.train_rows or len(train))
    files = {
        n: write(arguments.workdir / f"{n}.jsonl", r)
        for n, r in {"train": train, "dev": dev}.items()
    }
    before = theirs_scores(SentenceTransformer(str(arguments.model), device="cpu"), dev)
    print(f"{len(train):,} training rows; before training: {before:.4f}", flush=True)
    size = arguments.batch_size or 16
    command = ["finetune", arguments.model, "--task", "similarity", "--train", files["train"]]
    command += ["--dev", files["dev"], "--text-column", TEXTS[0], "--text-column", TEXTS[1]]
    command += ["--label-column", "score", "--max-length", 128, "--batch-size", size]
    command += ["--epochs", arguments.epochs, "--learning-rate", arguments.learning_rate]
    command += ["--seeds", arguments.seeds, "--set", "optimizer.bias_correction=true"]
    command += ["--workdir", arguments.workdir / "ours"]
    subprocess.run([sys.executable, "-m", "bert_jax", *map(str, command)], check=True)
    results = json.loads((arguments.workdir / "ours/results.json").read_text())
    places = [Path(each, "result.json") for each in results["best"]["directories"]]
    found = {"ours": [score_of(json.loads(each.read_text())) for each in places], "theirs": []}
    for seed in range(arguments.seeds):
        path = arguments.workdir / f"theirs-{seed}.json"
        if not path.is_file():
            path.write_text(json.dumps(theirs(arguments, train, dev, size=size, seed=seed)))
        found["theirs"].append(json.loads(path.read_text()))
    for side, each in found.items():
        shown = ", ".join(f"{score:.4f}" for score in each)
        print(f"{side}: mean {statistics.mean(each):.4f} ({shown})")


def score_of(result: dict) -> float:
    (scores,) = result["scores"].values()
    return scores["spearman"]


def theirs(arguments, train: list[dict], dev: list[dict], *, size: int, seed: int) -> float:
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    model = SentenceTransformer(str(arguments.model), device="cpu")
    model.max_seq_length = 128
    steps = int(len(train) * arguments.epochs / size)
    settings = SentenceTransformerTrainingArguments(
        output_dir=str(arguments.workdir / "theirs"),
        max_steps=steps,
        per_device_train_batch_size=size,
        learning_rate=arguments.learning_rate,
        warmup_steps=steps // 10,
        weight_decay=0.01,
        adam_epsilon=1e-6,
        seed=seed,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    columns = {text: [row[text] for row in train] for text in TEXTS}
    columns["score"] = [float(row["score"]) for row in train]
    SentenceTransformerTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset.from_dict(columns),
        loss=losses.CoSENTLoss(model),
    ).train()
    return theirs_scores(model, dev)


def theirs_scores(model: SentenceTransformer, dev: list[dict]) -> float:
    first, second = (model.encode([row[text] for row in dev]) for text in TEXTS)
    cosines = model.similarity_pairwise(first, second).numpy()
    return spearman(np.array([float(row["score"]) for row in dev]), cosines)


# --- step


def pairs_of(path: Path, *, count: int) -> list[dict]:
    lines = [*path.open(encoding="utf-8")]
    if path.suffix == ".jsonl":
        return random.Random(0).sample([json.loads(line) for line in lines], count)
    split = [line.split() for line in lines]
    found = [
        {"query": " ".join(words[:QUERY]), "positive": " ".join(words[QUERY:])}
        for words in split
        if len(words) >= QUERY + DOCUMENT
    ]
    return random.Random(0).sample(found, count)


def step(arguments) -> None:
    size = arguments.batch_size or 128
    rows = pairs_of(arguments.data, count=size * 4)
    train = write(arguments.workdir / "pairs.jsonl", rows[: size * 3])
    dev = write(arguments.workdir / "dev.jsonl", rows[size * 3 :])
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    spec = dataclasses.replace(TASKS["pairs"].spec, text_columns=("query", "positive"))
    with jax.set_mesh(mesh):
        source = load_checkpoint(arguments.model, mesh=mesh, allow_missing_heads=True)
        words = load_tokenizer(source.tokenizer)
        data = load_task(spec, Sources(train=train, dev=str(dev)), words, length=128)
        settings = Settings(
            length=128,
            batch_size=size,
            learning_rate=arguments.learning_rate,
            overrides=("optimizer.bias_correction=true",),
        )
        config = _config(source, data, settings, length=settings.length)
        state, features = _beginning(config, source).to_mesh(mesh), data.train.features
        batches = training_batches(features, config, mesh)
        compiled, objective, layout = {}, PairObjective(), sharding.batch_sharding(mesh)
        theirs = SentenceTransformer(str(arguments.model), device="cpu").train()
        theirs.max_seq_length = 128
        loss_of = losses.MultipleNegativesRankingLoss(theirs)
        optimizer = torch.optim.AdamW(theirs.parameters(), lr=arguments.learning_rate)
        taken = []
        # Round 0 is not counted: it compiles.
        for number in range(arguments.rounds + 1):
            chosen = np.arange(number * size, (number + 1) * size) % len(features)
            batch = jax.device_put(batches(chosen), layout)
            shape = batch["input_ids"].shape
            if shape not in compiled:
                lowered = lower_train_step(config, state, batch, objective=objective)
                compiled[shape] = compile_lowered(lowered)
            texts = [[rows[i][text] for i in chosen] for text in ("query", "positive")]
            inputs = [theirs.preprocess(each) for each in texts]
            marks = [clocks()]
            state, values = compiled[shape](state, batch)
            jax.block_until_ready(state)
            marks.append(clocks())
            optimizer.zero_grad()
            loss = loss_of(inputs, None)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
            optimizer.step()
            marks.append(clocks())
            taken.append(np.diff(marks, axis=0))
            tokens = [batch["input_ids"].size, sum(x["input_ids"].numel() for x in inputs)]
            print(
                f"round {number}: seconds, CPU seconds {np.round(taken[-1], 2).tolist()}, losses "
                f"{float(values['loss']):.4f}, {loss.item():.4f}, tokens {tokens} with padding, "
                f"{features.lengths[chosen].sum()} without",
                flush=True,
            )
    for name, clock in (("seconds", 0), ("CPU seconds", 1)):
        ours, torchs = np.median(taken[1:], axis=0)[:, clock]
        print(f"median {name}: ours {ours:.2f}, theirs {torchs:.2f}, ratio {torchs / ours:.2f}")


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


if __name__ == "__main__":
    main()
