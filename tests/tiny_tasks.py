"""Small files of every kind of task, and a small encoder to train on them."""

import json
import random
from pathlib import Path

from bert_jax.config import ModelConfig
from bert_jax.interchange import huggingface
from bert_jax.model import bert
from tests.models import HEADS

_NOUNS = ("cat", "dog", "owl", "bee", "cow")
_GOOD, _BAD = ("good", "fine", "kind"), ("bad", "poor", "mean")
_PLACES = ("rome", "york", "oslo")
_OTHER = ("the", "a", "is", "was", "in", "and", "who", "where", "very", ".", "?", "lives", "##s")
_VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = (*_NOUNS, *_GOOD, *_BAD, *_PLACES, *_OTHER)
MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=48,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    # Far enough from zero to learn something in a test.
    initializer_range=0.1,
)


def encoder(directory: Path) -> Path:
    """A Hugging Face directory of a fresh encoder with a pooler, and its vocabulary."""
    vocabulary = directory.parent / f"{directory.name}-vocabulary"
    vocabulary.mkdir(parents=True)
    rows = "\n".join([*_VOCABULARY, *WORDS])
    (vocabulary / "vocab.txt").write_text(rows + "\n", encoding="utf-8")
    params = bert.init_params(MODEL, HEADS["Model"], seed=0)
    huggingface.write(directory, params, MODEL, tokenizer=vocabulary, head=HEADS["Model"])
    return directory


def sentences(count: int, *, seed: int) -> list[tuple[str, int]]:
    """Sentences that are good or bad by one word of them."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        label = draw.randrange(2)
        word = draw.choice((_BAD, _GOOD)[label])
        found.append((f"the {draw.choice(_NOUNS)} in {draw.choice(_PLACES)} is {word} .", label))
    return found


def sst2(folder: Path) -> Path:
    """A folder of GLUE's files."""
    folder.mkdir(parents=True)
    for seed, (name, count) in enumerate((("train", 160), ("dev", 40))):
        rows = [f"{text}\t{label}" for text, label in sentences(count, seed=seed)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    rows = [f"{i}\t{text}" for i, (text, _) in enumerate(sentences(9, seed=7))]
    (folder / "test.tsv").write_text("\n".join(["index\tsentence", *rows]) + "\n")
    return folder


def pairs(path: Path, *, seed: int, count: int = 160) -> Path:
    """Two sentences and how alike they are: 0 to 2, as a number."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        one, two = (draw.choice(_NOUNS), draw.choice((*_GOOD, *_BAD))), None
        alike = draw.randrange(3)
        two = (
            one[0] if alike else draw.choice([n for n in _NOUNS if n != one[0]]),
            one[1] if alike == 2 else "very",
        )
        record = {"left": " ".join(one), "right": " ".join(two), "alike": float(alike)}
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")
    return path


def tagged(path: Path, *, seed: int, count: int = 160) -> Path:
    """Animals of two words and places, in CoNLL columns; all sentences are of one length."""
    draw = random.Random(seed)
    blocks = []
    for _ in range(count):
        rows = ["the O"]
        rows += [f"{draw.choice(_GOOD)} B-animal", f"{draw.choice(_NOUNS)} I-animal"]
        rows += ["lives O", "in O", f"{draw.choice(_PLACES)} B-place", ". O"]
        blocks.append("\n".join(rows))
    path.write_text("\n\n".join(blocks) + "\n")
    return path


def questions(path: Path, *, seed: int, count: int = 96, unanswerable: bool = False) -> Path:
    """Where an animal lives: one paragraph of three sentences each; some it says nothing about."""
    draw = random.Random(seed)
    entries = []
    for number in range(count):
        animals, places = draw.sample(_NOUNS, 3), [draw.choice(_PLACES) for _ in range(2)]
        context = " ".join(f"the {a} lives in {p} ." for a, p in zip(animals, places, strict=False))
        which = draw.randrange(3 if unanswerable else 2)
        entry = {"id": f"{seed}-{number}", "question": f"where is the {animals[which]} ?"}
        if which == 2:
            entry |= {"answers": [], "is_impossible": True}
        else:
            start = context.index(f"{animals[which]} lives in ") + len(animals[which]) + 10
            entry |= {"answers": [{"text": places[which], "answer_start": start}]}
        entries.append({"context": context, "qas": [entry]})
    path.write_text(json.dumps({"data": [{"title": "animals", "paragraphs": entries}]}))
    return path
