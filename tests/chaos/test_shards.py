"""Every kind of damage to a corpus is found before step 1, and named.

BERT_JAX_CHAOS=long python -m pytest tests/chaos/test_shards.py -rP
"""

import itertools
import os
import random
import shutil
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import SPLITS, open_corpus
from bert_jax.errors import DataDamaged
from tests import tiny_corpus
from tests.chaos import IS_LONG

_TRIALS = 10 if IS_LONG else 3  # of each kind


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A corpus of many shards of about one size: what is swapped must not show in the sizes."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(0)
    words = [a + b + c for a, b, c in itertools.product("bdgk", "aeio", "lmrt")]
    documents = [
        " ".join(" ".join(draw.choices(words, k=size)).capitalize() + "." for size in (5, 7, 4, 8))
        for _ in range(240)
    ]
    (folder / "source.txt").write_text("\n\n".join(documents))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_jax.data.corpus.job.PART_BYTES", 1000)
        patch.setattr("bert_jax.data.corpus.job.SHARD_TOKENS", 1)
        prepare(
            [str(folder / "source.txt")],
            folder / "corpus",
            vocab_size=240,
            validation_fraction=0.3,
            workers=1,
        )
    return folder / "corpus"


@pytest.fixture
def corpus(built, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(built, tmp_path / "corpus"))


# --- kinds of damage: each returns the files it did it to ----------------------------------------


def _shards(corpus: Path) -> list[Path]:
    return sorted(corpus.glob("*/*.npy"))


def flip_a_bit(corpus: Path, draw: random.Random) -> list[Path]:
    file = draw.choice(_shards(corpus))
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)
    return [file]


def truncate(corpus: Path, draw: random.Random) -> list[Path]:
    file = draw.choice(_shards(corpus))
    os.truncate(file, draw.randrange(file.stat().st_size))
    return [file]


def delete(corpus: Path, draw: random.Random) -> list[Path]:
    file = draw.choice(_shards(corpus))
    file.unlink()
    return [file]


def zero_a_block(corpus: Path, draw: random.Random) -> list[Path]:
    file = draw.choice(_shards(corpus))
    data = bytearray(file.read_bytes())
    # The end of a row of offsets is never 0, nor is the header.
    start = draw.randrange(len(data) - 16)
    start, stop = (start, start + 512) if any(data[start : start + 512]) else (0, 512)
    data[start:stop] = bytes(len(data[start:stop]))
    file.write_bytes(data)
    return [file]


def swap_two(corpus: Path, draw: random.Random) -> list[Path]:
    alike = [
        (one, other)
        for one, other in itertools.combinations(_shards(corpus), 2)
        if one.stat().st_size == other.stat().st_size and one.read_bytes() != other.read_bytes()
    ]
    one, other = draw.choice(alike)
    aside = corpus / "aside"
    one.rename(aside), other.rename(one), aside.rename(other)
    return [one, other]


def append(corpus: Path, draw: random.Random) -> list[Path]:
    file = draw.choice(_shards(corpus))
    with file.open("ab") as stream:
        stream.write(draw.randbytes(draw.randint(1, 4096)))
    return [file]


_KINDS = (flip_a_bit, truncate, delete, zero_a_block, swap_two, append)


def _is_named(message: str, damaged: list[Path]) -> bool:
    return any(str(file) in message for file in damaged)


# --- the promise ---------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", _KINDS, ids=lambda damage: damage.__name__)
def test_damage_is_found_and_named(built, tmp_path, damage):
    named = 0
    for trial in range(_TRIALS):
        corpus = Path(shutil.copytree(built, tmp_path / f"{trial}"))
        damaged = damage(corpus, random.Random(f"{damage.__name__} {trial}"))
        with pytest.raises(DataDamaged) as caught:
            open_corpus(corpus, verify=SPLITS)
        assert "run prepare again" in str(caught.value) and "\n" not in str(caught.value)
        named += _is_named(str(caught.value), damaged)
    print(f"{damage.__name__}: {named} of {_TRIALS} named")
    assert named == _TRIALS


def test_pretrain_stops_before_it_begins(corpus, tmp_path, capsys):
    config = tiny_corpus.write_config(tmp_path / "tiny.json", tiny_corpus.tiny_config())
    damaged = flip_a_bit(corpus, random.Random(0))
    workdir = tmp_path / "workdir"
    arguments = ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(workdir)]
    assert main(arguments) == DataDamaged.exit_code == 4
    assert _is_named(capsys.readouterr().err, damaged)
    assert not workdir.exists()


def _flip_last_id(corpus: Path, split: str) -> Path:
    file = corpus / split / "00000.tokens.npy"
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    return file


def test_sizes_alone_can_be_asked_for(corpus, tmp_path, capsys):
    """With `data.verify=sizes` an altered id goes unseen; the run gets as far as its batch size."""
    config = tiny_corpus.write_config(tmp_path / "tiny.json", tiny_corpus.tiny_config())
    file = _flip_last_id(corpus, "train")
    arguments = ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(tmp_path / "w")]
    # A batch that eight devices do not divide ends the run once the corpus is open.
    arguments += ["--set", "phases.0.global_batch_size=7"]
    assert main(arguments) == 4
    assert str(file) in capsys.readouterr().err
    assert main([*arguments, "--set", "data.verify=sizes"]) == 2
    assert "global_batch_size" in capsys.readouterr().err


def test_evaluate_verifies_what_it_reads(corpus, tmp_path, capsys):
    """The corpus comes first: where it is whole, the checkpoint that is not there is the error."""
    arguments = ["evaluate", "--checkpoint", str(tmp_path / "none"), "--corpus", str(corpus)]
    assert main(arguments) == 2
    assert "--checkpoint" in capsys.readouterr().err
    _flip_last_id(corpus, "train")
    assert main(arguments) == 2
    file = _flip_last_id(corpus, "validation")
    assert main(arguments) == 4
    assert str(file) in capsys.readouterr().err
