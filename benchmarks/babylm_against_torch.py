"""Compares one epoch of a BabyLM corpus with `transformers`' masked LM recipe: loss, BLiMP, time.

    pip install -e '.[parity]' accelerate
    python benchmarks/babylm_against_torch.py train TEXT_FOLDER OURS PEER --seed 0
    python benchmarks/babylm_against_torch.py score TEXT_FOLDER MODEL ...

`train` trains a BERT with the tokenizer and the shape of OURS, an exported directory, on the text
files in TEXT_FOLDER/train: as `run_mlm.py` of transformers does, in blocks of 128 tokens, each
once, 15 % of the tokens masked, AdamW with a linear decay. It writes PEER, a directory of
transformers, and prints the seconds. `score` prints for each MODEL the loss, computed by
transformers, on the first 128 tokens of each paragraph in TEXT_FOLDER/validation, under one fixed
mask of 15 %. The models need the same tokenizer. `bert-jax probe MODEL --pairs FILE` scores BLiMP.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    set_seed,
)

LENGTH, BATCH, RATE = 128, 64, 0.15
ROWS = 64  # of a batch in `score`


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("train", "score"))
    parser.add_argument("text", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--bf16", action="store_true", help="autocast")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    arguments = parser.parse_args()
    (train if arguments.what == "train" else score)(arguments)


def blocks_of(tokenizer, texts: list[str]) -> np.ndarray:
    """Returns the tokens of all texts, joined and cut, int32 `[N, LENGTH]`."""
    ids: list[int] = []
    for start in range(0, len(texts), 1000):
        ids += itertools.chain(*tokenizer(texts[start : start + 1000])["input_ids"])
    return np.array(ids[: len(ids) // LENGTH * LENGTH], np.int32).reshape(-1, LENGTH)


def paragraphs_of(folder: Path) -> list[str]:
    return [
        line
        for file in sorted(folder.glob("*.txt"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]


class Blocks(torch.utils.data.Dataset):
    def __init__(self, blocks: np.ndarray):
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": torch.from_numpy(self.blocks[index].astype(np.int64))}


def train(arguments) -> None:
    ours, peer = arguments.models
    tokenizer = AutoTokenizer.from_pretrained(ours)
    shape = json.loads((ours / "config.json").read_text())
    texts = paragraphs_of(arguments.text / "train")  # lines, as run_mlm.py reads text files
    blocks = blocks_of(tokenizer, texts)
    print(f"{len(blocks):,} blocks of {LENGTH} tokens", flush=True)
    set_seed(arguments.seed)
    width = shape["hidden_size"]
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=shape["vocab_size"],
            hidden_size=width,
            num_hidden_layers=shape["num_hidden_layers"],
            num_attention_heads=shape["num_attention_heads"],
            intermediate_size=4 * width,
            max_position_embeddings=512,
        )
    )
    settings = TrainingArguments(
        output_dir=str(peer / "trainer"),
        num_train_epochs=1,
        max_steps=arguments.max_steps,
        per_device_train_batch_size=BATCH,
        learning_rate=arguments.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=len(blocks) // BATCH // 25,
        weight_decay=0.01,
        seed=arguments.seed,
        save_strategy="no",
        report_to="none",
        logging_steps=200,
        use_cpu=True,
        bf16=arguments.bf16,
        torch_compile=arguments.compile,
    )
    began = time.perf_counter()
    Trainer(
        model=model,
        args=settings,
        train_dataset=Blocks(blocks),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=RATE),
    ).train()
    print(f"seed {arguments.seed}: {time.perf_counter() - began:.0f} s", flush=True)
    model.save_pretrained(peer)
    tokenizer.save_pretrained(peer)


def score(arguments) -> None:
    tokenizer = AutoTokenizer.from_pretrained(arguments.models[0])
    texts = paragraphs_of(arguments.text / "validation")
    found = tokenizer(
        texts,
        truncation=True,
        max_length=LENGTH,
        padding="max_length",
        return_tensors="pt",
        return_special_tokens_mask=True,
    )
    draw = torch.rand(found["input_ids"].shape, generator=torch.Generator().manual_seed(0))
    chosen = (draw < RATE) & (found["special_tokens_mask"] == 0)
    inputs = torch.where(chosen, tokenizer.mask_token_id, found["input_ids"])
    for place in arguments.models:
        model = AutoModelForMaskedLM.from_pretrained(place).eval()
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(texts), ROWS):
                part = slice(start, start + ROWS)
                mask = found["attention_mask"][part]
                logits = model(input_ids=inputs[part], attention_mask=mask).logits[chosen[part]]
                targets = found["input_ids"][part][chosen[part]]
                total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
        print(f"{place}: {total / int(chosen.sum()):.4f} nats, {int(chosen.sum()):,} tokens")


if __name__ == "__main__":
    main()
