"""The model card states what the workdir's records hold, and nothing else."""

import json

import pytest
import yaml
from safetensors.numpy import load_file

from bert_jax.config import TrainConfig
from bert_jax.pretrained import model_card
from bert_jax.workdir import log_reader
from tests import tiny_corpus


@pytest.fixture(scope="module")
def card(exported) -> str:
    return (exported / "README.md").read_text(encoding="utf-8")


def cells(card: str, section: str) -> list[list[str]]:
    """Returns the rows of a section's table, without the header."""
    text = card.split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def written(tmp_path, config=None, **stored) -> str:
    """Returns the card of a workdir with these records."""
    (tmp_path / "config.json").write_text(json.dumps({"config": {}} | stored))
    (tmp_path / "card").mkdir()
    config = config or tiny_corpus.tiny_config()
    model_card.write_model_card(
        tmp_path / "card", tmp_path, config, step=2, parameters=1, library=None
    )
    return (tmp_path / "card" / "README.md").read_text(encoding="utf-8")


def test_front_matter(card):
    assert yaml.safe_load(card.split("---")[1]) == {
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["bert", "bert-jax"],
    }


def test_family_data_and_steps(card, exported, corpus):
    config = tiny_corpus.tiny_config()
    tensors = load_file(exported / "model.safetensors")
    # The decoder's matrix is the word embedding.
    total = sum(t.size for name, t in tensors.items() if "predictions.decoder" not in name)
    model = config.model
    assert f"{model.num_hidden_layers} layers of width {model.hidden_size}, {total:,} param" in card
    counts = json.loads((corpus / "corpus.json").read_text())["counts"]
    for split in ("train", "validation"):
        documents, tokens = (f"{counts[split][name]:,}" for name in ("documents", "tokens"))
        assert f"{split}: {documents} documents, {tokens} tokens" in card
    assert "stories.txt" in card and str(corpus) not in card, "names, not places"
    rows = cells(card, "Training")
    assert [int(row[1].replace(",", "")) for row in rows] == [p.steps for p in config.phases]


def test_the_figures_are_those_of_the_log(card, trained):
    last = [r for r in log_reader.read_rows(trained) if r.get("split")][-1]
    rows = cells(card, "Validation metrics")
    assert f"Step {last['step']:,}." in card and len(rows) > 2
    assert float(rows[0][1]) == pytest.approx(last["mlm_loss"], rel=1e-3)


def test_what_the_records_lack_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "dev", "loss": 1.0}\n')
    text = written(tmp_path, TrainConfig(), corpus={"fingerprint": "a", "train": {"documents": 1}})
    assert "Not recorded." in text and "documents" not in text and "Not stated" in text


def test_scores_in_percent_have_their_unit(tmp_path):
    scores = {"f1": 61.5, "best_f1_threshold": -3.0}
    (tmp_path / "result.json").write_text(json.dumps({"steps": 2, "scores": {"dev": scores}}))
    task = {"name": "squad", "kind": "spans", "metrics": ["f1"]}
    text = written(tmp_path, task=task, rows={"train": 8}, init_from="/somewhere/base")
    rows = [["dev", "f1", "61.5000 %"], ["dev", "best_f1_threshold", "-3.0000"]]
    assert cells(text, "Scores") == rows
    assert "fine-tuned on squad" in text and "- started from: base" in text
    assert "- train: 8 rows" in text
