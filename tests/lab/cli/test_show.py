"""The verb `show`: descriptions of fields."""

import json

import pytest

from bert_jax.__main__ import main
from bert_jax.config import flatten
from bert_jax.config_loader import load_config, shipped_names


def test_each_field_and_each_chosen_option_has_a_description(capsys):
    changes = ["--set", "optimizer.kind=muon", "--set", "optimizer.momentum=0.9"]
    assert main(["config", "fields", "bert_base", "--json", *changes]) == 0
    found = {f["field"]: f for f in map(json.loads, capsys.readouterr().out.splitlines())}
    config = load_config("bert_base", changes[1::2])
    assert {name: f["value"] for name, f in found.items()} == flatten(config)
    momentum = found["optimizer.momentum"]
    assert (momentum["value"], momentum["default"]) == (0.9, 0.95)
    assert (
        momentum["allowed"] == "at least 0, below 1" and momentum["on_resume"] == "--allow-change"
    )
    assert "one of auto, local" in found["compute.attention"]["allowed"]
    assert not any("](" in f["meaning"] for f in found.values()), "a link is of no use here"

    assert main(["config", "fields", "bert_base"]) == 0
    text = capsys.readouterr().out
    assert (
        "seed = 0  (on resume: --allow-change; at least 0, at most 4294967295)\n"
        "    Seed of the initial weights" in text
    )


def test_each_shipped_config_is_listed_with_one_line(capsys):
    assert main(["config", "list", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["config"] for row in found] == shipped_names()
    assert all(row["summary"].endswith(".") for row in found)
    assert main(["config", "list"]) == 0
    out = capsys.readouterr().out
    assert "bert_base_64core          BERT-Base on 64 TPU v3 cores" in out
    with pytest.raises(SystemExit, match="2"):
        main(["configs"])
    assert "did you mean 'config list'?" in capsys.readouterr().err


def test_a_corpus_is_shown_as_prepare_does(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Owl {i} sees {i + 1} mice." for i in range(60)), "utf-8")
    command = ["prepare", "--source", text, "--output-dir", tmp_path / "c", "--vocab-size", 100]
    assert main([*map(str, command), "--validation-fraction", "0.1"]) == 0
    prepared = capsys.readouterr().out
    assert main(["corpus", "show", str(tmp_path / "c")]) == 0
    assert capsys.readouterr().out == prepared
    assert main(["corpus", "show", str(tmp_path / "c"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["total"]["documents"] == 60
    assert main(["corpus", "show", str(tmp_path)]) == 2
    assert "is not a corpus: it has no corpus.json" in capsys.readouterr().err
