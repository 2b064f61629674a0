"""Rows of 1,024 tokens, extended to 8,192: does the model reach what stands 4,096 tokens away?

    python benchmarks/context_extension.py OUTPUT [--steps 1500 1000 1800]    # hours on two cores

The language is made: a text is pairs of a key and a value, and a key has the same value all over
its document, drawn anew for the next one. A pair is one that stood before, at a distance whose
logarithm is uniform, or a new one. Who reads such a text learns to look a key's value up.

One run is trained in rows of 128, then 1,024. Two branches of it go on in rows of 8,192, one with a
theta of 160,000, as ModernBERT's global layers were extended (arXiv:2412.13663, section 3.3), one
with its old theta of 10,000. All three are asked for facts that were planted: a key that the
document has twice only, so many tokens apart, and the second value is masked. The held-out loss
of masked values by where they stand says whether the far part of a row is read as well as the near.

It may be interrupted; the same command goes on.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import bert_jax
from bert_jax.pretrained.model_card import markdown_table

_KEYS, _VALUES = 1024, 64
_PAIRS = 4095  # of a document: with [CLS] and [SEP] it is one row of 8,192
_NEW, _FARTHEST = 0.08, 3000  # the share of new pairs; pairs between an old one and its repetition
_LENGTHS = (128, 1024, 8192)
_ROW_TOKENS = 8192  # of an update
_MASK = "[MASK]"
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", _MASK)
_WORDS = len(_SPECIAL) + _KEYS + _VALUES
_KEY_WORDS = np.asarray([f"k{i:04}" for i in range(_KEYS)])
_VALUE_WORDS = np.asarray([f"v{i:03}" for i in range(_VALUES)])

CONFIG = """
import dataclasses
from bert_jax.config import DataConfig, EvaluationConfig, OptimizerConfig, PhaseConfig, TrainConfig
from bert_jax.config_loader import load_config


def phase(length, steps, **changes):
    return PhaseConfig(
        sequence_length=length, steps=steps, global_batch_size={tokens} // length,
        masked_lm_prob=0.3, changes=changes,
    )


def config() -> TrainConfig:
    base = load_config("modernbert_base")
    return dataclasses.replace(
        base,
        name="context_extension",
        model=dataclasses.replace(
            base.model, vocab_size={words}, hidden_size=128, num_hidden_layers=3,
            num_attention_heads=2, intermediate_size=192, attention_window=32,
            global_attention_every_n_layers=3, first_global_layer=2,
            max_position_embeddings=8192, rope_theta=1e4, hidden_dropout_prob=0.0,
        ),
        compute=dataclasses.replace(base.compute, dtype="float32"),
        data=DataConfig(rows="documents", packing="best_fit"),
        evaluation=EvaluationConfig(batch_size=4, num_examples=64),
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=100, schedule="constant"),
        phases=({phases}),
    )
"""
_EXTENSION = """
        phase({length}, {steps}, **{{
            "optimizer.schedule": "warmup_stable_decay", "optimizer.learning_rate": 1e-3,
            "optimizer.warmup_steps": 0, "optimizer.decay_steps": {steps} // 2, {theta}
        }}),
"""


def documents(seed: int, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the keys and values, `[_PAIRS]` each, of so many documents.

    What stood before a document begins is drawn, too, so that all of its parts are alike.
    """
    draw = np.random.default_rng(seed)
    length = _FARTHEST + _PAIRS
    for _ in range(count):
        value_of = draw.integers(0, _VALUES, _KEYS)
        is_new = draw.random(length) < _NEW
        back = np.exp(draw.random(length) * np.log(_FARTHEST)).astype(np.int64)
        names = iter(draw.permutation(_KEYS))
        keys = np.empty(length, np.int64)
        for i in range(length):
            fresh = is_new[i] or back[i] > i
            keys[i] = next(names) if fresh else keys[i - back[i]]
        yield keys[_FARTHEST:], value_of[keys[_FARTHEST:]]


def words_of(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns a document's words in their order, `[2 * _PAIRS]`."""
    # Objects: in an array of strings of one width a longer word would be cut.
    return np.stack([_KEY_WORDS[keys], _VALUE_WORDS[values]], axis=1).ravel().astype(object)


def write_corpus(output: Path, count: int) -> Path:
    """Writes a text and a vocabulary, prepares them, and returns the corpus."""
    corpus = output / "corpus"
    if (corpus / "corpus.json").exists():
        return corpus
    vocabulary = output / "vocabulary"
    vocabulary.mkdir(parents=True, exist_ok=True)
    words = [*_SPECIAL, *_KEY_WORDS, *_VALUE_WORDS]
    (vocabulary / "vocab.txt").write_text("\n".join(words) + "\n")
    with (output / "text.txt").open("w") as file:
        for keys, values in documents(0, count):
            for line in words_of(keys, values).reshape(-1, 18):
                file.write(" ".join(line) + "\n")
            file.write("\n")
    _bert_jax(
        "prepare", "--source", output / "text.txt", "--output", corpus,
        "--tokenizer", vocabulary / "vocab.txt", "--validation-fraction", "0.02",
    )  # fmt: skip
    return corpus


def train(output: Path, corpus: Path, steps: Sequence[int]) -> Iterator[tuple[str, Path]]:
    """Trains what is not there yet; yields each workdir and what it is called in the tables."""
    short = "".join(
        f"phase({length}, {n}), " for length, n in zip(_LENGTHS, steps[:2], strict=False)
    )
    extended = {
        "base": "",
        "theta": _EXTENSION.format(
            length=_LENGTHS[2], steps=steps[2], theta='"model.rope_theta": 160_000.0,'
        ),
        "old-theta": _EXTENSION.format(length=_LENGTHS[2], steps=steps[2], theta=""),
    }
    runs = {name: output / name for name in extended}
    for name, phases in extended.items():
        config = output / f"{name}.py"
        config.write_text(
            CONFIG.format(words=_WORDS, tokens=_ROW_TOKENS, phases=f"{short}{phases}")
        )
        begun = []
        if name != "base" and not runs[name].exists():
            _bert_jax("checkpoints", "branch", runs["base"], "--output", runs[name])
            begun = ["--allow-change", "phases"]
        _bert_jax("pretrain", config, "--corpus", corpus, "--workdir", runs[name], *begun)
        yield name, runs[name]


def recall(model: bert_jax.Model, apart: int, *, count: int, facts: int) -> float:
    """Returns how many of `count * facts` planted values are the model's first choice.

    A fact stands twice in its document, `apart` tokens from each other, and nowhere else.
    """
    draw = np.random.default_rng(1)
    right = 0
    for keys, values in documents(2, count):
        unused = np.setdiff1d(np.arange(_KEYS), keys)[:facts]
        told = asked = np.zeros(1, np.int64)
        while np.intersect1d(told, asked).size:
            told = draw.permutation(_PAIRS - apart // 2)[: len(unused)]
            asked = told + apart // 2
        planted = draw.integers(0, _VALUES, len(unused))
        for places in (told, asked):
            keys[places], values[places] = unused, planted
        words = words_of(keys, values)
        words[2 * asked + 1] = _MASK
        scores = model.logits(" ".join(words))["mlm_logits"][0, 2 * asked + 2]
        right += np.sum(scores.argmax(-1) == len(_SPECIAL) + _KEYS + planted) / len(unused)
    return right / count


def loss_by_place(model: bert_jax.Model, *, count: int) -> np.ndarray:
    """Returns the mean loss of masked values, `[8]`: by the eighth of the row they stand in.

    Each document is asked eight times, an eighth further round each time, so that each masked value
    stands once in each eighth: else the eighths would differ by their values.
    """
    draw = np.random.default_rng(3)
    sums, counts = np.zeros(8), np.zeros(8)
    for keys, values in documents(4, count):
        is_masked = draw.random(2 * _PAIRS) < 0.15
        for turn in range(8):
            by = -(turn * _PAIRS // 8)
            words = words_of(np.roll(keys, by), np.roll(values, by))
            masked = np.flatnonzero(np.roll(is_masked, 2 * by))
            words[masked] = _MASK
            masked = masked[masked % 2 == 1]
            scores = model.logits(" ".join(words))["mlm_logits"][0, 1 + masked].astype(np.float64)
            truth = len(_SPECIAL) + _KEYS + np.roll(values, by)[masked // 2]
            top = scores.max(-1)
            normaliser = top + np.log(np.exp(scores - top[:, None]).sum(-1))
            losses = normaliser - scores[np.arange(len(masked)), truth]
            places = (masked + 1) // 1024
            np.add.at(sums, places, losses)
            np.add.at(counts, places, 1)
    return sums / counts


def _bert_jax(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "bert_jax", *map(str, arguments)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("output", type=Path, help="where text, corpus and runs go")
    parser.add_argument(
        "--steps", type=int, nargs=3, default=[1500, 1000, 1800], metavar="N", help="of each length"
    )
    parser.add_argument("--documents", type=int, default=1000, help="of the corpus (default: 1000)")
    parser.add_argument("--asked", type=int, default=48, help="documents asked (default: 48)")
    arguments = parser.parse_args()
    corpus = write_corpus(arguments.output, arguments.documents)
    apart = (256, 512, 1024, 2048, 4096, 6144)
    recalls, losses = [], []
    for name, workdir in train(arguments.output, corpus, arguments.steps):
        model = bert_jax.load(workdir)
        found = [recall(model, each, count=arguments.asked, facts=16) for each in apart]
        recalls.append([name, *(f"{each:.2f}" for each in found)])
        by_place = loss_by_place(model, count=arguments.asked)
        near, far = by_place[1], by_place[4:].mean()
        losses.append([name, *(f"{x:.3f}" for x in by_place), f"{100 * (far / near - 1):+.1f} %"])
        print(*recalls[-1], *losses[-1], flush=True)
    print(markdown_table(["recall, tokens apart", *map(str, apart)], recalls))
    print()
    places = [f"{i} to {i + 1} Ki" for i in range(8)]
    print(markdown_table(["loss", *places, "4 to 8 Ki over 1 to 2 Ki"], losses))
    return 0


if __name__ == "__main__":
    sys.exit(main())
