"""The verbs that score vectors and mine negatives, from files to output, with a tiny model."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import bert_jax
from bert_jax.__main__ import main
from bert_jax.cli.training import evaluate
from bert_jax.data.tasks.retrieval_sets import read_retrieval_set
from bert_jax.inference import retrieve
from bert_jax.inference.forward import Forward
from bert_jax.interchange import sentence_transformers
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.tasks.scores import spearman
from bert_jax.tasks.vector_scores import Retrieval
from tests.batches import mesh_of
from tests.paths import ROOT
from tests.tiny_corpus import documents as stories

_PROMPTS = {"query": "search: ", "passage": "answer: "}
_STORIES = stories(number=20)


@pytest.fixture(scope="module")
def embedder(shared, exported) -> Path:
    """A directory of sentence-transformers with prompts."""

    def fill(directory: Path) -> None:
        shutil.copytree(exported, directory / "model")
        (directory / "model/1_Pooling").mkdir()
        stages = [("Transformer", ""), ("Pooling", "1_Pooling")]
        files = {
            "modules.json": [{"path": p, "type": f"sentence_transformers.{k}"} for k, p in stages],
            "1_Pooling/config.json": {"pooling_mode": "mean"},
            "config_sentence_transformers.json": {"prompts": _PROMPTS},
            "sentence_bert_config.json": {"max_seq_length": 32},
        }
        for name, content in files.items():
            (directory / "model" / name).write_text(json.dumps(content))

    return shared("embedder", fill) / "model"


@pytest.fixture
def beir(tmp_path) -> Path:
    """Each story is a document; its first sentence is the query. The second query is in the
    corpus, as those of ArguAna are.
    """
    asked = [{"_id": f"q{n}", "text": text} for n, text in enumerate(queries())]
    corpus = [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(_STORIES)]
    corpus.append({"_id": "q1", "title": "It", "text": queries()[1]})
    for name, rows in (("corpus", corpus), ("queries", asked)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    judgments = "".join(f"q{n}\td{n}\t1\n" for n in range(len(_STORIES)))
    (tmp_path / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judgments}")
    return tmp_path


def queries() -> list[str]:
    return [f"{number} {text.split('.')[0]}" for number, text in enumerate(_STORIES)]


def normalized(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_prompts_are_those_of_the_directory(embedder):
    """A query has the prompt "query"; a document the first of "document", "passage", "corpus"."""
    checkpoint, model = load_checkpoint(embedder, allow_missing_heads=True), bert_jax.load(embedder)
    texts = _STORIES[:3]
    for names, prompt in ((sentence_transformers.QUERY_PROMPTS, "search: "), (("no",), "")):
        (found,) = retrieve.text_vectors(checkpoint, (texts, names))
        expected = normalized(model.embed([prompt + text for text in texts], length=32))
        assert np.allclose(found, expected, atol=1e-6)
    (found,) = retrieve.text_vectors(checkpoint, (texts, sentence_transformers.DOCUMENT_PROMPTS))
    assert np.allclose(found, normalized(model.embed([f"answer: {t}" for t in texts], length=32)))


def test_the_example_searches_with_prompts(embedder, tmp_path, capsys, monkeypatch):
    passages = [f"Story {n}: {story.split('.')[0]}." for n, story in enumerate(_STORIES)]
    passages = [each for each in passages if len(each.split()) >= 8]
    (tmp_path / "stories.txt").write_text("\n\n".join(passages))
    asked, model = queries()[3], bert_jax.load(embedder)
    source, length = str(tmp_path / "stories.txt"), ("--length", "32")
    monkeypatch.setattr(
        sys, "argv", ["search.py", source, asked, *length, "--model", str(embedder)]
    )
    runpy.run_path(str(ROOT / "examples/search.py"), run_name="__main__")
    (query,) = model.embed([f"search: {asked}"], length=32)
    scores = normalized(model.embed([f"answer: {each}" for each in passages], length=32)) @ query
    *_, shown = capsys.readouterr().out.splitlines()
    assert shown == f"  {embedder}: {passages[np.argmax(scores)]}"


def test_a_prompt_that_is_refused_costs_no_time(embedder, beir, capsys, monkeypatch):
    """The prompt of queries is checked before the documents are encoded."""
    home = shutil.copytree(embedder, beir / "model")
    for name, changes in {
        "1_Pooling/config.json": {"include_prompt": False},
        "config_sentence_transformers.json": {"prompts": {"query": "an owl "}},
    }.items():
        settings = json.loads((home / name).read_text()) | changes
        (home / name).write_text(json.dumps(settings))
    monkeypatch.setattr(Forward, "__call__", lambda *_, **__: pytest.fail("it encodes texts"))
    assert main(["evaluate", str(home), "--retrieval", str(beir)]) == 2
    assert "set it to true" in capsys.readouterr().err


def test_a_model_of_dot_products_has_vectors_of_any_length(embedder, tmp_path):
    home = tmp_path / "dot"
    shutil.copytree(embedder, home)
    settings = home / "config_sentence_transformers.json"
    settings.write_text(json.dumps({"similarity_fn_name": "dot"}))
    checkpoint = load_checkpoint(home, allow_missing_heads=True)
    (found,) = retrieve.text_vectors(checkpoint, (_STORIES, ()))
    assert np.allclose(found, bert_jax.load(home).embed(_STORIES, length=32), atol=1e-6)
    assert np.ptp(np.linalg.norm(found, axis=1)) > 1e-3


def test_retrieval_by_the_command_line(embedder, beir, capsys, monkeypatch):
    """The scores are those of all cosines; the document that is the query itself is left out."""
    monkeypatch.setattr(evaluate, "BM25", "no_such_package")
    command = ["evaluate", str(embedder), "--retrieval", str(beir)]
    assert main([*command, "--json"]) == 0
    shown = capsys.readouterr()
    assert "pip install no_such_package" in shown.err
    scores = json.loads(shown.out)
    model = bert_jax.load(embedder)
    asked = [f"search: {query}" for query in queries()]
    answers = [f"answer: {text}" for text in (*_STORIES, f"It {queries()[1]}")]
    vectors = [normalized(model.embed(texts, length=32)) for texts in (asked, answers)]
    cosines = vectors[0] @ vectors[1].T
    cosines[1, -1] = -1  # itself
    ranks = np.sum(cosines > np.diag(cosines)[:, None], axis=1) + 1
    assert scores["MRR@10"] == pytest.approx(np.mean(np.where(ranks <= 10, 1 / ranks, 0)))
    assert scores["recall@10"] == pytest.approx(np.mean(ranks <= 10))
    assert main(command) == 0
    assert f"{scores['nDCG@10']:.4f}" in capsys.readouterr().out


def test_bm25_is_shown_for_comparison(embedder, beir, capsys):
    pytest.importorskip("bm25s", reason="needs the extra 'retrieval'")
    assert main(["evaluate", str(embedder), "--retrieval", str(beir), "--json"]) == 0
    bm25 = json.loads(capsys.readouterr().out.splitlines()[1])
    assert bm25["checkpoint"] == "BM25" and bm25["recall@10"] > 0.9, "queries repeat words"


def test_scores_are_equal_on_one_and_eight_devices(embedder, beir):
    given = Retrieval(read_retrieval_set(beir))

    def scores(devices: int) -> dict[str, float]:
        mesh = mesh_of((devices, 1, 1))
        checkpoint = load_checkpoint(embedder, allow_missing_heads=True, mesh=mesh)
        return given.score(*retrieve.text_vectors(checkpoint, *given.texts), mesh=mesh)

    assert scores(1) == pytest.approx(scores(8), abs=1e-12)


def test_similarity_is_spearmans_correlation_with_the_cosine(embedder, tmp_path, capsys):
    pairs = [*zip(_STORIES[:10], _STORIES[10:20], strict=True)]
    gold = [n % 4 for n in range(10)]  # ties
    rows = [{"a": a, "b": b, "score": score} for (a, b), score in zip(pairs, gold, strict=True)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        "evaluate",
        str(embedder),
        "--similarity",
        str(path),
        "--text-column",
        "a",
        "--text-column",
        "b",
    ]
    model = bert_jax.load(embedder)
    vectors = [model.embed([pair[n] for pair in pairs], length=32) for n in (0, 1)]
    for options, dims in (([], None), (["--dims", "4"], 4)):
        assert main([*command, "--json", *options]) == 0
        found = json.loads(capsys.readouterr().out)["Spearman"]
        one, other = (normalized(each[:, :dims]) for each in vectors)
        assert found == pytest.approx(spearman(np.array(gold), np.sum(one * other, axis=1)))


def test_a_score_that_is_no_number_is_named(embedder, tmp_path, capsys):
    path = tmp_path / "pairs.csv"
    path.write_text("sentence1,sentence2,score\na,b,1\na,b,nan\n")
    assert main(["evaluate", str(embedder), "--similarity", str(path)]) == 2
    assert "line 3: score 'nan' is not a finite number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--corpus", "runs/corpus"], "--corpus"),
        (["--eval-set-from", "runs/base"], "--eval-set-from"),
        (["--text-column", "a"], "--text-column"),
    ],
)
def test_options_of_another_job_are_refused(embedder, beir, options, named, capsys):
    assert main(["evaluate", str(embedder), "--retrieval", str(beir), *options]) == 2
    assert named in capsys.readouterr().err


def test_negatives_are_mined_from_files(embedder, tmp_path, beir, capsys):
    pairs, output = tmp_path / "pairs.csv", tmp_path / "mined.jsonl"
    rows = [*zip(queries(), _STORIES, strict=True)]
    pairs.write_text("q,p\n" + "".join(f'"{q}","{" ".join(p.split())}"\n' for q, p in rows))
    command = ["mine", str(embedder), "--input", str(pairs), "--text-column", "q"]
    command += ["--text-column", "p", "--negatives", "2", "--output-file", str(output)]
    assert main([*command, "--documents", str(beir / "corpus.jsonl")]) == 0
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert {tuple(record) for record in records} == {
        ("query", "positive", "negative_1", "negative_2")
    }
    assert len(records) == len(_STORIES)
    assert f"{len(records)} pairs with 2 negatives" in capsys.readouterr().out
    assert main([*command, "--negatives", "0"]) == 2
    assert "--negatives 0" in capsys.readouterr().err


def test_dims_are_those_of_vectors(embedder, beir, capsys):
    """More columns than the vectors have, and columns without a set to score, are refused."""
    assert main(["evaluate", str(embedder), "--retrieval", str(beir), "--dims", "1000"]) == 2
    assert "--dims 1000: the vectors have 32 columns" in capsys.readouterr().err
    assert main(["evaluate", str(embedder), "--dims", "4"]) == 2
    assert "--dims" in capsys.readouterr().err
