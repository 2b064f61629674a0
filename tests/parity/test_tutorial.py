"""The vectors of docs/tutorials/own-corpus-gpu.md are those of sentence-transformers."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.pages import TUTORIALS, blocks, commands_of, run_commands, write_parquet

pytestmark = pytest.mark.parity
_PAGE = TUTORIALS / "own-corpus-gpu.md"


def test_the_vectors_are_those_of_sentence_transformers(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sentence_transformers", reason="needs the 'parity' extra")
    monkeypatch.chdir(tmp_path)
    write_parquet(Path("data"))
    wanted = "printf|bert-jax (?:prepare|pretrain|export|embed) "
    lines = dict.fromkeys(line for line in commands_of(_PAGE) if re.match(wanted, line))
    assert len(lines) == 5
    run_commands([*lines], capsys, monkeypatch)
    (code,) = blocks(_PAGE, "python")
    names: dict = {}
    exec(code, names)
    with np.load("vectors.npz") as saved:
        assert saved["vectors"].shape == (2, 32)
        np.testing.assert_allclose(names["vectors"], saved["vectors"], atol=1e-5, rtol=0)
    similarity = names["vectors"] @ names["vectors"].T
    assert similarity[0, 1] < 0.999  # two texts have two vectors
