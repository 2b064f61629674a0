"""Standard input, standard output and JSON: the verbs as parts of a pipe."""

import io
import json
import os
import sys

import numpy as np
import pytest

from bert_jax.__main__ import main


@pytest.fixture
def piped(monkeypatch):
    """Puts a text on standard input."""

    def put(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8"))

    return put


@pytest.mark.parametrize("command", [["config", "show", "bert_base"], ["checkpoints", "list"]])
def test_a_closed_pipe_ends_a_verb_without_a_message(command, monkeypatch, trained, capfd):
    if command[0] == "checkpoints":
        command = [*command, str(trained)]
    reader, writer = os.pipe()
    os.close(reader)
    with monkeypatch.context() as patched, open(writer, "w") as stdout:
        patched.setattr(sys, "stdout", stdout)
        assert main(command) == 141
    assert capfd.readouterr() == ("", "")


def test_fill_mask_reads_lines_and_prints_objects(piped, trained, capsys, monkeypatch):
    command = ["fill-mask", str(trained), "--json", "--top", "2"]
    piped("The [MASK] eats hay.\n\nA [MASK] and a [MASK].\n")
    assert main(command) == 0
    one, two = map(json.loads, capsys.readouterr().out.splitlines())
    assert one["text"] == "The [MASK] eats hay." and len(two["masks"]) == 2
    assert [sorted(c) for c in one["masks"][0]] == [["probability", "text", "token"]] * 2
    assert main([*command, "The [MASK] eats hay."]) == 0
    assert json.loads(capsys.readouterr().out) == one
    piped("The [MASK].\n\nno mask\n")
    assert main([*command, "-"]) == 2
    assert "standard input, line 3: 'no mask' has no [MASK]" in capsys.readouterr().err
    assert main([*command[:-1], "0", "The [MASK]."]) == 2
    assert "--top 0: must be at least 1" in capsys.readouterr().err
    piped("\n")
    assert main([*command, "-"]) == 2
    assert "standard input has no text" in capsys.readouterr().err
    latin = io.TextIOWrapper(io.BytesIO("The [MASK].\ncaf\xe9 [MASK]\n".encode("latin-1")))
    monkeypatch.setattr(sys, "stdin", latin)
    assert main([*command, "-"]) == 2
    assert "standard input, line 2, is not UTF-8 text" in capsys.readouterr().err


def test_embed_counts_the_lines_that_have_no_vector(piped, trained, tmp_path, capsys):
    command = ["embed", str(trained), "--output-file", str(tmp_path / "v.npz")]
    command += ["--max-length", "16"]
    piped("The horse.\n\nThe bear.\nThe cow.\n")
    assert main(command) == 0
    assert "3 vectors of 32; 1 blank lines have none ('lines' has" in capsys.readouterr().out
    found = np.load(tmp_path / "v.npz")
    assert sorted(found) == ["lines", "vectors"] and found["lines"].tolist() == [1, 3, 4]
    (tmp_path / "texts").write_text("The horse.\nThe bear.\nThe cow.\n")
    assert main([*command, "--input", str(tmp_path / "texts")]) == 0
    assert capsys.readouterr().out.endswith("3 vectors of 32\n")
    assert (np.load(tmp_path / "v.npz")["vectors"] == found["vectors"]).all()


def test_embed_prints_objects(piped, trained, tmp_path, capsys):
    command = ["embed", str(trained), "--json"]
    piped("The horse.\n\nThe bear.\n")
    assert main([*command, "--output-file", str(tmp_path / "v.npz")]) == 0
    said = capsys.readouterr()
    found = [json.loads(line) for line in said.out.splitlines()]
    assert [each["line"] for each in found] == [1, 3] and "wrote" in said.err
    arrays = np.load(tmp_path / "v.npz")
    np.testing.assert_array_equal(np.float32([each["vector"] for each in found]), arrays["vectors"])
    piped("The horse.\nThe bear.\n")
    assert main([*command, "--pooling", "none"]) == 0
    found = [json.loads(line)["vectors"] for line in capsys.readouterr().out.splitlines()]
    assert all(len(vectors) > 3 and len(vectors[0]) == 32 for vectors in found)
    assert main(command[:-1]) == 2
    assert (
        "name --output-file FILE.npz, or print the vectors with --json" in capsys.readouterr().err
    )


def test_checkpoints_as_json(trained, capsys):
    assert main(["checkpoints", "list", str(trained), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[-1]["step"] == 200 and all(row["is_good"] for row in rows)
