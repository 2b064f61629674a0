"""The commands that read a corpus find damage before they begin (tests/data/corpus has each kind).

`data.verify` chooses the check: checksums, or only the sizes of the files.
"""

import shutil
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.errors import DataDamaged
from tests import tiny_corpus


@pytest.fixture
def copied(corpus, tmp_path) -> Path:
    return Path(shutil.copytree(corpus, tmp_path / "corpus"))


def change_last_id(corpus: Path, split: str) -> Path:
    """Changes one token, so that every size and range stays as it was."""
    file = corpus / split / "00000.tokens.npy"
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    return file


def test_pretrain_verifies_checksums_or_sizes(copied, tmp_path, capsys):
    file = change_last_id(copied, "train")
    config = tiny_corpus.write_config(tmp_path / "tiny.json", tiny_corpus.tiny_config())
    workdir = tmp_path / "workdir"
    arguments = ["pretrain", str(config), "--corpus", str(copied), "--workdir", str(workdir)]
    assert main(arguments) == DataDamaged.exit_code == 4
    assert str(file) in capsys.readouterr().err and not workdir.exists()
    # The batch size, which the devices do not divide, is checked after the corpus.
    arguments += ["--set", "phases.0.global_batch_size=7", "--set", "data.verify=sizes"]
    assert main(arguments) == 2
    assert "global_batch_size" in capsys.readouterr().err


def test_evaluate_verifies_the_validation_split(copied, tmp_path, capsys):
    """The corpus is checked before the checkpoint, which is missing here."""
    arguments = ["evaluate", str(tmp_path / "none"), "--corpus", str(copied)]
    change_last_id(copied, "train")
    assert main(arguments) == 2
    assert "CHECKPOINT" in capsys.readouterr().err
    file = change_last_id(copied, "validation")
    assert main(arguments) == 4
    assert str(file) in capsys.readouterr().err
