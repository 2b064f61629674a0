"""Vectors of texts from labeled pairs: rows, runs, scores, predictions, prompts, refusals."""

import itertools
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config import DataConfig, EmbeddingConfig, HeadConfig, PhaseConfig, TrainConfig
from bert_jax.data.pairs.texts import places_of_texts
from bert_jax.data.tasks.encode_rows import arrays_of
from bert_jax.data.tasks.examples import encode_examples
from bert_jax.data.tasks.packing import PackedBatches
from bert_jax.data.tasks.tables import TextRow
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.inference.embed import embed
from bert_jax.interchange import sentence_transformers
from bert_jax.interchange.sentence_transformers import EmbeddingRecipe
from bert_jax.objectives.pair_losses import CoSENT, InfoNCE, MarginMSE
from bert_jax.pretrained.load import load_checkpoint, with_parts
from bert_jax.registry import TASKS
from bert_jax.tasks.finetune import Settings, _rows_of_steps
from bert_jax.tasks.predict import Predictor
from bert_jax.tasks.sweep import _config, _with_prompts
from bert_jax.tasks.task import Sources, task_of
from bert_jax.tasks.task_data import load_task
from bert_jax.workdir import log_reader
from tests import tiny_tasks

_FAST = ["--max-length", "16", "--batch-size", "8", "--learning-rate", "2e-3", "--epochs", "6"]
_FAST += ["--set", "optimizer.bias_correction=true", "--set", "evaluation.every_steps=0"]
_FAST += ["--seed", "1"]
_PAIRS = ["--task", "pairs", "--text-column", "q", "--text-column", "d"]
UNMASKED = EmbeddingConfig(loss=InfoNCE(mask_duplicates=False))


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
    dev = write(tmp_path / "dev.jsonl", [r | {"q": r["q"].replace("where", "who")} for r in rows])
    options = [*_PAIRS, "--train", train, "--dev", dev]
    options += ["--text-column", "n", "--query-prompt", "who ", "--document-prompt", "a "]
    options += ["--set", "embedding.dims=[16]", "--set", "optimizer.gradient_accumulation_steps=2"]
    rated = [{"sentence1": r["q"], "sentence2": r["d"], "score": n} for n, r in enumerate(rows)]
    hook = {"kind": "vector_scores", "share": 1}
    hook["similarity"] = str(write(tmp_path / "rated.jsonl", rated))
    options += ["--set", f"hooks={json.dumps([hook])}"]
    assert finetune(encoder, tmp_path / "run", *options, "--json") == 0
    scores = json.loads((tmp_path / "run/result.json").read_text())["scores"]
    assert list(scores) == ["dev"]
    logged = log_reader.closing_rows(log_reader.read_rows(tmp_path / "run"))[1]
    assert -1 <= logged["similarity/rated.jsonl"]["Spearman"] <= 1
    scores = scores["dev"]
    assert scores["MRR@10"] > 0.7  # a query has one of five nouns; copies do not count

    texts = tmp_path / "texts.txt"
    texts.write_text("where is the cat\nthe cat lives in rome .\n")
    export = ["export", str(tmp_path / "run"), "--output-dir", str(tmp_path / "st")]
    capsys.readouterr()
    assert main(export) == 0
    assert f'SentenceTransformer("{tmp_path / "st"}")' in capsys.readouterr().out
    settings = json.loads((tmp_path / "st/config_sentence_transformers.json").read_text())
    assert settings["prompts"] == {"query": "who ", "document": "a "}
    assert settings["matryoshka_dims"] == [32, 16]
    for name in ("query", "document"):
        ours, theirs = (
            embed(tmp_path / place, texts, prompt=name)["vectors"] for place in ("run", "st")
        )
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, rtol=1e-5)
    with pytest.raises(UsageError, match="query, document"):
        embed(tmp_path / "run", texts, prompt="passage")
    capsys.readouterr()
    for place, other in (("run", 8), ("st", 4)):
        embed(tmp_path / place, texts, dims=16)
        assert "dims" not in capsys.readouterr().err
        embed(tmp_path / place, texts, dims=other)
        assert f"{other}: the run trained vectors of 32, 16" in capsys.readouterr().err
    assert main([*export[:-1], str(tmp_path / "tf1"), "--format", "tf1"]) == 2
    assert "pooling mean, which a TF1 checkpoint has no place" in capsys.readouterr().err


def test_similarities_follow_their_scores(encoder, tmp_path, capsys):
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(60):
        one, other = (draw.choice(tiny_tasks._NOUNS, 2) for _ in range(2))
        score = len({*one} & {*other})
        rows.append({"a": " ".join(one), "b": " ".join(other), "label": score})
    train = write(tmp_path / "train.jsonl", rows)
    dev = write(tmp_path / "dev.jsonl", [r | {"a": r["b"], "b": r["a"] + " ."} for r in rows])
    options = ["--task", "similarity", "--train", train, "--dev", dev, "--text-column", "a"]
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


def test_vectors_follow_the_scores_of_a_teacher(encoder, tmp_path):
    """The teacher prefers the document with the noun of the query, wherever it is."""
    nouns = tiny_tasks._NOUNS
    rows = [
        {"q": f"where is the {noun}", "d": f"a {one} .", "n": f"a {other} .", "s": [8.0, 0.0]}
        | ({"s": [0.0, 8.0]} if noun == other else {})
        for noun, one, other in itertools.product(nouns, nouns, nouns)
        if one != other and noun in (one, other)
    ]
    train = write(tmp_path / "train.jsonl", rows)
    options = [*_PAIRS, "--text-column", "n", "--train", train]
    dev = write(tmp_path / "dev.jsonl", [r | {"q": r["q"].replace("where", "who")} for r in rows])
    assert finetune(encoder, tmp_path / "run", *options, "--label-column", "s", "--dev", dev) == 0
    config = json.loads((tmp_path / "run/config.json").read_text())["config"]["embedding"]
    assert config["loss"]["kind"] == "margin_mse" and config["similarity"] == "dot"
    found = Predictor(tmp_path / "run").file(train)
    margins = np.array([record["score"][0] - record["score"][1] for record in found])
    wanted = np.array([row["s"][0] - row["s"][1] for row in rows])
    assert np.corrcoef(margins, wanted)[0, 1] > 0.9


def test_each_batch_has_one_source_with_its_share(encoder, tmp_path, capsys):
    files = [tmp_path / f"{name}.jsonl" for name in ("birds", "dogs")]
    for file in files:
        pairs = [{"q": f"{file.stem} {n}", "d": f"a {file.stem} in rome {n}"} for n in range(40)]
        write(file, pairs)
    spec = replace(TASKS["pairs"].spec, text_columns=("q", "d"))
    data = load_task(spec, Sources(train=files), load_tokenizer(encoder), length=16)
    assert (len(data.train.rows), len(data.dev["dev"].rows)) == (72, 8)
    config = TrainConfig(
        data=DataConfig(source_weights="birds=3,dogs=1"),
        phases=(PhaseConfig(steps=16, global_batch_size=8),),
    )
    rows, found = _rows_of_steps(data, config), []
    for step in range(16):
        (source,) = {data.train.rows[number].source for number in rows(step)}
        found.append(source)
        assert (_rows_of_steps(data, config)(step) == rows(step)).all()
    assert all(abs(found[:n].count("birds") - 0.75 * n) < 1 for n in range(17))

    options = [*_PAIRS, "--epochs", "1", "--train"]
    assert finetune(encoder, tmp_path / "run", *options, files[0], "--train", files[1]) == 0
    stored = json.loads((tmp_path / "run/config.json").read_text())
    assert stored["sources"] == ["birds.jsonl", "dogs.jsonl"]


def test_evaluations_take_at_most_a_tenth_of_the_time(encoder, tmp_path):
    """A held-out row costs at most half of a row of an update: no backward pass."""
    for name, count in (("train", 80), ("few", 20), ("many", 400)):
        rows = [{"q": f"{name} {n}", "d": f"a dog in rome {n}"} for n in range(count)]
        write(tmp_path / name, rows).rename(tmp_path / f"{name}.jsonl")
    spec = replace(TASKS["pairs"].spec, text_columns=("q", "d"))
    source = load_checkpoint(encoder, allow_missing_heads=True)
    found = {}
    for name in ("few", "many"):
        sources = Sources(train=tmp_path / "train.jsonl", dev=tmp_path / f"{name}.jsonl")
        data = load_task(spec, sources, load_tokenizer(encoder), length=16)
        config = _config(source, data, Settings(batch_size=8), length=16)
        found[name] = config.evaluation.every_steps
    assert found == {"few": 13, "many": 250}


PAIRS = [("cat", "dog"), ("where is the cat", "in rome"), ("bird", "tree")]


def test_the_pooling_is_that_of_the_directory_unless_it_is_set(encoder, tmp_path):
    home = shutil.copytree(encoder, tmp_path / "cls")
    sentence_transformers.write(home, EmbeddingRecipe(pooling="cls"), width=32)
    source = load_checkpoint(home)
    train = write(tmp_path / "train.jsonl", [{"q": q, "d": d} for q, d in PAIRS])
    spec = replace(TASKS["pairs"].spec, text_columns=("q", "d"))
    words = load_tokenizer(source.tokenizer)
    dev = write(tmp_path / "dev.jsonl", [{"q": "a bee", "d": "a tree"}])
    data = load_task(spec, Sources(train=train, dev=str(dev)), words, length=16)
    for overrides, pooling in (((), "cls"), (("head.pooling=max",), "max")):
        settings = Settings(batch_size=2, overrides=overrides)
        assert _config(source, data, settings, length=16).head.pooling == pooling
    with pytest.raises(UsageError, match=r"override head\.labels"):
        _config(source, data, Settings(overrides=('head.labels=["a"]',)), length=16)


def test_prompts_are_those_of_the_directory_unless_they_are_given(encoder, tmp_path):
    home = shutil.copytree(encoder, tmp_path / "prompts")
    recipe = EmbeddingRecipe(prompts={"query": "q: ", "passage": "p: ", "all": "a: "})
    sentence_transformers.write(home, recipe, width=32)
    file = home / "config_sentence_transformers.json"
    described = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(described | {"default_prompt_name": "all"}))
    source = load_checkpoint(home)
    for name, given, expected in (
        ("pairs", {}, ("q: ", "p: ")),
        ("pairs", {"query_prompt": "", "document_prompt": "d: "}, ("", "d: ")),
        ("similarity", {}, ("a: ", "a: ")),
    ):
        spec = _with_prompts(replace(TASKS[name].spec, **given), source)
        assert (spec.query_prompt, spec.document_prompt) == expected
    spec = TASKS["text"].spec
    assert _with_prompts(spec, source) is spec


@pytest.mark.parametrize(
    ("kind", "rows", "changes", "message"),
    [
        ("pairs", [("cat", "dog", "cat")], {}, "row 0: a negative is the query"),
        ("pairs", [("cat", "dog", "dog ")], {}, "row 0: a negative is the query"),
        ("pairs", [("cat", "cat", "dog")], {}, "row 0: the two texts of every row are the same"),
        ("pairs", [("cat", "dog"), ("cat ", "bee")], {}, "row 0: all 2 rows have this query"),
        ("pairs", [("owl", "dog"), ("cow", "dog")], {}, "row 0: all 2 rows have this document"),
        ("pairs", [("cat", "dog"), ("cat", "bee")], {"embedding": UNMASKED}, "by their query"),
        ("pairs", PAIRS, {"embedding": EmbeddingConfig(loss=CoSENT())}, "cosent needs scores"),
        ("similarity", PAIRS, {"embedding": EmbeddingConfig(loss=MarginMSE())}, "needs negatives"),
        ("pairs", PAIRS, {"phases": (PhaseConfig(global_batch_size=1),)}, "use at least 2"),
        ("pairs", PAIRS, {"phases": (PhaseConfig(global_batch_size=4),)}, "3 rows are fewer than"),
        ("pairs", PAIRS, {}, "row 9: 1 rows of dev are also in the training rows, by their query"),
        ("similarity", PAIRS, {}, "by both texts"),
    ],
)
def test_rows_and_options_that_teach_nothing_are_refused(kind, rows, changes, message):
    task = task_of(TASKS[kind].spec)
    phase = PhaseConfig(global_batch_size=2)
    config = replace(TrainConfig(embedding=task.embedding(), phases=(phase,)), **changes)
    with pytest.raises(UsageError, match=message):
        train = task.usable([row(number, *texts) for number, texts in enumerate(rows)])
        task.check(config, train, {"dev": [row(8, "bee", "cat"), row(9, "cat", " dog")]})


def test_rows_with_one_text_twice_are_named(our_messages):
    task = task_of(TASKS["pairs"].spec)
    rows = [row(number, *texts) for number, texts in enumerate([*PAIRS, ("cow", "cow ")])]
    assert task.usable(rows) == rows
    (message,) = our_messages()
    assert message == "row 3: 1 of 4 training rows have the same text twice"


def test_slices_of_a_loss_that_a_task_lacks_are_refused(encoder, tmp_path, capsys):
    train = write(tmp_path / "train.jsonl", [{"q": q, "d": d} for q, d in PAIRS])
    options = [*_PAIRS, "--train", train, "--dev", train, "--set", "compute.loss_slices=2"]
    assert finetune(encoder, tmp_path / "run", *options) == 2
    assert "compute.loss_slices: a task has no loss over the vocab" in capsys.readouterr().err


def test_embeddings_do_not_start_from_a_generator(encoder, tmp_path):
    home = shutil.copytree(encoder, tmp_path / "generator")
    file = home / "config.json"
    described = json.loads(file.read_text(encoding="utf-8"))
    assert "ElectraForMaskedLM" not in described["architectures"]
    source = load_checkpoint(home)
    config = replace(source.config, head=HeadConfig(parts=("embedding",)))
    assert set(with_parts(source, config)[0]) == {"encoder"}
    file.write_text(json.dumps(described | {"architectures": ["ElectraForMaskedLM"]}))
    with pytest.raises(UsageError, match="is an ELECTRA generator"):
        with_parts(source, config)


@pytest.mark.parametrize("label", ["[1, 2]", "[1, NaN, 2]", '[1, "a", 2]', "3", "x"])
def test_scores_of_other_documents_are_refused(encoder, label):
    task = task_of(replace(TASKS["pairs"].spec, label_column="s"))
    rows = [replace(row(0, "cat", "dog", "bee", "tree"), label=label)]
    with pytest.raises(UsageError, match="row 0: scores are "):
        task.encode(rows, load_tokenizer(encoder), length=16, labelled=True)


def test_a_text_without_tokens_is_named(encoder):
    with pytest.raises(UsageError, match="row 1: text 2 has no tokens"):
        encode_examples(
            [row(0, "cat", "dog"), row(1, "cat", " ")],
            load_tokenizer(encoder),
            length=16,
            prompts=("", "a "),
        )
