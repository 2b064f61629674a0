"""Every verb that reads text warns about a high share of unknown tokens."""

import json

import pytest

from bert_jax.__main__ import main
from bert_jax.data.tokenizer.tokenizer import SpecialIds
from bert_jax.data.tokenizer.unknown import (
    note_unknown,
    note_unknown_ids,
)

_STRANGE = "The \u263a\u263a\u263a \u2603 of Ada."


@pytest.mark.parametrize(("unknown", "said"), [(0, False), (10, False), (11, True), (1000, True)])
def test_more_than_one_percent_is_a_warning(unknown, said, capsys):
    note_unknown(unknown, 1000, "the tokens of the corpus", "do this")
    message = f"warning: {unknown / 10} % of the tokens of the corpus are [UNK]; do this\n"
    assert capsys.readouterr().err == message * said


def test_the_share_ignores_special_tokens(capsys):
    import numpy as np

    special = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
    note_unknown_ids(np.array([[2, 9, 1, 4, 8, 3, 0, 0], [2, 9, 9, 9, 3, 0, 0, 0]]), special)
    assert "14.3 % of the tokens of the text are [UNK]" in capsys.readouterr().err
    note_unknown_ids(np.zeros((0, 8), np.int32), special)
    assert capsys.readouterr().err == ""


def _prepare(folder, words, capsys):
    text = "\n\n".join(f"The cat sees {words} {i % 7} times in {i}." for i in range(200))
    (folder / "a.txt").write_text(text, encoding="utf-8")
    known = [
        *"0123456789",
        *(f"##{i}" for i in range(10)),
        *["the", "cat", "sees", "dogs", "times", "in", "."],
    ]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *known]) + "\n")
    command = ["--source", str(folder / "a.txt"), "--tokenizer", str(folder / "vocab.txt")]
    options = ["--validation-fraction", "0.2", "--workers", "1"]
    assert main(["prepare", *command, *options, "--output-dir", str(folder / "c")]) == 0
    return json.loads((folder / "c/corpus.json").read_text()), capsys.readouterr()


def test_prepare_counts_it(tmp_path, capsys):
    manifest, said = _prepare(tmp_path, "owls and dogs", capsys)
    shares = manifest["unknown_share"]
    assert shares.keys() == {"train", "validation", "total"}
    # "owls" and "and", of words, digits and the stop.
    counts = manifest["counts"]
    for name, share in shares.items():
        expected = 2 * counts[name]["documents"] / counts[name]["tokens"]
        assert share == pytest.approx(expected, abs=1e-6)
    assert f"{100 * shares['train']:.2f} %" in said.out and "[UNK]" in said.out
    share = f"{100 * shares['total']:.1f}"
    assert f"warning: {share} % of the tokens of the corpus are [UNK]" in said.err
    assert "choose a --tokenizer trained on this text" in said.err


def test_a_corpus_without_unknown_tokens_has_no_warning(tmp_path, capsys):
    manifest, said = _prepare(tmp_path, "dogs", capsys)
    assert not any(manifest["unknown_share"].values())
    assert "0.00 %" in said.out and "warning" not in said.err


def test_fill_mask_and_embed_warn(exported, tmp_path, capsys):
    command = [str(exported)]
    assert main(["fill-mask", *command, f"{_STRANGE} [MASK]"]) == 0
    said = capsys.readouterr().err
    assert "warning: " in said and f"'{_STRANGE} [MASK]' are [UNK]" in said
    assert main(["fill-mask", *command, "The [MASK] of Ada eats hay every day."]) == 0
    assert "warning" not in capsys.readouterr().err
    (tmp_path / "lines.txt").write_text(f"{_STRANGE}\nHoney.\n", encoding="utf-8")
    files = ["--input", str(tmp_path / "lines.txt"), "--output-file", str(tmp_path / "v.npz")]
    assert main(["embed", *command, *files, "--max-length", "32"]) == 0
    assert "of the tokens of the text are [UNK]" in capsys.readouterr().err
