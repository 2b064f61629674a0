"""Vectors of texts from labeled pairs: rows, runs, scores, predictions, prompts, refusals."""

import json

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.data.tasks.encode_rows import arrays_of, places_of_texts
from bert_jax.data.tasks.examples import encode_examples
from bert_jax.data.tasks.packing import PackedBatches
from bert_jax.data.tasks.tables import TextRow
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.inference.embed import embed
from bert_jax.registry import TASKS
from bert_jax.tasks.task import task_of
from tests import tiny_tasks

_FAST = ["--max-length", "16", "--batch-size", "8", "--learning-rate", "2e-3", "--epochs", "6"]
_FAST += ["--set", "optimizer.bias_correction=true", "--set", "evaluation.every_steps=0"]
_FAST += ["--seed", "1"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return tiny_tasks.encoder(tmp_path_factory.mktemp("encoder") / "hf")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def finetune(encoder, home, *options):
    command = ["finetune", str(encoder), "--workdir", str(home), *_FAST]
    return main([*command, *map(str, options)])


def row(number, *texts):
    return TextRow(f"row {number}", texts, None, str(number))


def test_each_text_of_a_row_has_its_own_positions():
    places = places_of_texts(np.array([[3, 4], [5, 2]]), length=8)
    assert places["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 0], [0, 1, 2, 3, 4, 0, 1, 0]]
    assert places["sequence_ids"].tolist() == [[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 1, 2, 2, 0]]
    assert places["text_positions"].tolist() == [[0, 3], [0, 5]]


def test_packed_examples_keep_their_texts_apart(encoder):
    tokenizer = load_tokenizer(encoder)
    rows = [row(n, "the cat", "a dog is good .", "bee") for n in range(5)]
    features = encode_examples(rows, tokenizer, length=16, prompts=("who ", "", ""))
    labels, weights = np.ones((5, 2), np.float32), np.ones(5, np.float32)
    features = features.__class__(**vars(features) | {"labels": labels, "weights": weights})
    alone = arrays_of(features, np.arange(1), length=features.input_ids.shape[1])
    who = tokenizer.encode_sentences(["who the cat"])[0]
    assert alone["input_ids"][0, 1 : 1 + len(who)].tolist() == who
    batch = PackedBatches(features, size=5)(np.arange(5))
    width = int(features.lengths[0])
    examples = int(batch["weights"].sum())
    assert examples == 5 and batch["labels"].sum() == 10
    for place in range(int(batch["weights"][0].sum())):
        part = slice(place * width, (place + 1) * width)
        assert (batch["input_ids"][0, part] == alone["input_ids"][0, :width]).all()
        assert (batch["position_ids"][0, part] == alone["position_ids"][0, :width]).all()
        assert set(batch["sequence_ids"][0, part]) == {3 * place + 1, 3 * place + 2, 3 * place + 3}
        assert batch["text_positions"][0, 3 * place] == place * width
    # Equal texts have equal ids.
    assert len({*batch["text_ids"][batch["text_ids"] != 0].tolist()}) == 3


def test_pairs_are_learned_scored_and_exported_with_their_prompts(encoder, tmp_path, capsys):
    nouns, places = tiny_tasks._NOUNS, tiny_tasks._PLACES
    rows = [
        {"q": f"where is the {noun}", "d": f"the {noun} lives in {place} .", "n": f"the {other} ."}
        for noun, place in zip(nouns, 2 * places, strict=False)
        for other in 3 * nouns
        if other != noun
    ]
    train = write(tmp_path / "train.jsonl", rows)
    options = [
        "--task",
        "pairs",
        "--train",
        train,
        "--dev",
        train,
        "--text-column",
        "q",
        "--text-column",
        "d",
    ]
    options += ["--text-column", "n", "--query-prompt", "who ", "--document-prompt", "a "]
    options += ["--set", "embedding.dims=[16]", "--set", "optimizer.gradient_accumulation_steps=2"]
    assert finetune(encoder, tmp_path / "run", *options, "--json") == 0
    scores = json.loads((tmp_path / "run/result.json").read_text())["scores"]["dev"]
    assert scores["mrr@10"] > 0.7  # a query has one of five nouns; copies do not count

    texts = tmp_path / "texts.txt"
    texts.write_text("where is the cat\nthe cat lives in rome .\n")
    export = ["export", str(tmp_path / "run"), "--output-dir", str(tmp_path / "st")]
    assert main(export) == 0
    settings = json.loads((tmp_path / "st/config_sentence_transformers.json").read_text())
    assert settings["prompts"] == {"query": "who ", "document": "a "}
    for name in ("query", "document"):
        ours, theirs = (
            embed(tmp_path / place, texts, prompt=name)["vectors"] for place in ("run", "st")
        )
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, rtol=1e-5)
    with pytest.raises(UsageError, match="query, document"):
        embed(tmp_path / "run", texts, prompt="passage")


def test_similarities_follow_their_scores(encoder, tmp_path, capsys):
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(60):
        one, other = (draw.choice(tiny_tasks._NOUNS, 2) for _ in range(2))
        score = len({*one} & {*other})
        rows.append({"a": " ".join(one), "b": " ".join(other), "label": score})
    train = write(tmp_path / "train.jsonl", rows)
    options = ["--task", "similarity", "--train", train, "--dev", train, "--text-column", "a"]
    assert finetune(encoder, tmp_path / "run", *options, "--text-column", "b", "--json") == 0
    found = json.loads((tmp_path / "run/result.json").read_text())["scores"]["dev"]
    capsys.readouterr()
    assert found["spearman"] > 0.5
    predict = ["predict", str(tmp_path / "run"), "--input", str(train)]
    assert main(predict) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    vectors = {}
    for side in ("a", "b"):
        file = tmp_path / f"{side}.txt"
        file.write_text("\n".join(row[side] for row in rows))
        vectors[side] = embed(tmp_path / "run", file)["vectors"]
    cosines = np.sum(vectors["a"] * vectors["b"], axis=1)
    np.testing.assert_allclose([record["score"] for record in records], cosines, atol=1e-5)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("cat", "dog", "cat"), "negative is the query"),
        (("cat", "dog", "dog "), "negative is the query"),
        (("cat", "cat", "dog"), "are the same"),
    ],
)
def test_rows_that_teach_nothing_are_refused(texts, message):
    task = task_of(TASKS["pairs"].spec)
    with pytest.raises(UsageError, match=f"row 0.*{message}"):
        task.usable([row(0, *texts)])


def test_a_text_without_tokens_is_named(encoder):
    with pytest.raises(UsageError, match="row 1: text 2 has no tokens"):
        encode_examples(
            [row(0, "cat", "dog"), row(1, "cat", " ")],
            load_tokenizer(encoder),
            length=16,
            prompts=("", "a "),
        )
