"""Directories of sentence-transformers: length, pooling and what follows it are the directory's.

Against the formulas of its modules (sentence_transformer/modules/pooling.py, base/modules/dense.py
and normalize.py), in NumPy over the hidden states. The whole was compared once with
`SentenceTransformer.encode` (docs/reference/compatibility.md).
"""

import json
import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import bert_jax
from bert_jax.__main__ import main
from bert_jax.errors import UsageError
from bert_jax.interchange import sentence_transformers

_TEXTS = ["The horse of Ada eats hay every day.", "An owl sleeps.", "The bear " * 20]
_LENGTH = 12
_MODULE = "sentence_transformers.models."


@pytest.fixture
def layout(tmp_path, exported):
    """A function that writes a directory with these modules, the encoder inside `folder`."""

    def make(*modules: tuple[str, dict], folder: str = "", **said: object) -> Path:
        home = tmp_path / "model"
        encoder = home / folder
        shutil.copytree(exported, encoder)
        listed = [{"idx": 0, "name": "0", "path": folder, "type": f"{_MODULE}Transformer"}]
        for number, (kind, fields) in enumerate(modules, 1):
            place = home / f"{number}_{kind}"
            place.mkdir()
            (place / "config.json").write_text(json.dumps(fields))
            listed.append({"path": place.name, "type": f"{_MODULE}{kind}"})
        (home / "modules.json").write_text(json.dumps(listed))
        said = {"max_seq_length": _LENGTH, **said}
        (encoder / "sentence_bert_config.json").write_text(json.dumps(said))
        return home

    return make


def _states(exported: Path, texts: list[str], *, length: int = _LENGTH):
    """Yields the hidden states of each text alone, `[tokens, D]`."""
    model = bert_jax.load(exported)
    return model.embed(texts, pooling="none", length=length)


@pytest.mark.parametrize("name", ["passage", ["query"]])
def test_a_prompt_that_is_none_of_its_own(layout, name):
    home = layout(("Pooling", {}))
    settings = {"default_prompt_name": name, "prompts": {"query": "query: "}}
    (home / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(UsageError, match=r"default_prompt_name .* is not among its prompts"):
        sentence_transformers.read(home)


@pytest.mark.parametrize(("written", "read"), [([64, 8], (64, 8)), ("64", None), ([0], None)])
def test_trained_dims_are_a_list_of_positive_integers(layout, written, read):
    home = layout(("Pooling", {}))
    settings = json.dumps({"matryoshka_dims": written})
    (home / "config_sentence_transformers.json").write_text(settings)
    assert sentence_transformers.read(home).trained_dims == read


_FORMULAS = {
    "cls": lambda states: states[0],
    "max": lambda states: states.max(axis=0),
    "mean": lambda states: states.mean(axis=0),
    "lasttoken": lambda states: states[-1],
}
_FIELDS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@pytest.mark.parametrize("pooling", _FORMULAS)
def test_each_pooling_has_its_formula(pooling, exported, layout, caplog, capsys):
    home = layout(("Pooling", {_FIELDS[pooling]: True}), folder="0_Transformer")
    with caplog.at_level(logging.INFO, "bert_jax"):
        found = bert_jax.load(home).embed(_TEXTS)
    assert "1 of 3 texts have more than 12 tokens and are truncated; a longer `length`" in (
        caplog.text
    )
    expected = [_FORMULAS[pooling](states) for states in _states(exported, _TEXTS)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    output = home.parent / "exported"
    assert main(["export", str(home), "--output-dir", str(output)]) == 0
    assert "(modules.json) are not exported" in capsys.readouterr().err


def test_the_default_prompt_is_before_each_text(exported, layout):
    home = layout(("Pooling", {}))
    prompts = {"query": "the horse ", "passage": "an owl "}
    settings = {"default_prompt_name": "query", "prompts": prompts}
    (home / "config_sentence_transformers.json").write_text(json.dumps(settings))
    assert sentence_transformers.read(home).prompts == prompts
    found = bert_jax.load(home).embed(_TEXTS)
    states = _states(exported, [f"the horse {text}" for text in _TEXTS])
    np.testing.assert_allclose(found, [s.mean(axis=0) for s in states], atol=1e-5)


def test_pooling_without_the_tokens_of_a_prompt_is_refused(layout):
    home = layout(("Pooling", {"pooling_mode": "mean", "include_prompt": False}))
    settings = {"prompts": {"query": "the horse ", "passage": ""}}
    (home / "config_sentence_transformers.json").write_text(json.dumps(settings))
    recipe = sentence_transformers.read(home)
    assert recipe.with_prompt("passage").prompt == "" == recipe.with_prompt(None).prompt
    with pytest.raises(UsageError, match="include_prompt is false"):
        recipe.with_prompt("query")


def test_what_follows_the_pooling_is_done(exported, layout):
    """A dense map and its activation, unit length, lower case; an option replaces them."""
    dense = {"activation_function": "torch.nn.modules.activation.Tanh"}
    home = layout(
        ("Pooling", {"pooling_mode": "mean"}), ("Dense", dense), ("Normalize", {}),
        do_lower_case=True,
    )  # fmt: skip
    draw = np.random.default_rng(0)
    weight, bias = (draw.normal(size=s).astype(np.float32) for s in ((5, 32), (5,)))
    save_file({"linear.weight": weight, "linear.bias": bias}, home / "2_Dense/model.safetensors")
    model, shouted = bert_jax.load(home), [text.upper() for text in _TEXTS]
    means = np.array([s.mean(axis=0) for s in _states(exported, [t.lower() for t in _TEXTS])])
    expected = np.tanh(means @ weight.T + bias)
    norms = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(model.embed(shouted), expected / norms, atol=1e-5)
    np.testing.assert_allclose(model.embed(shouted, normalize=False), expected, atol=1e-5)
    np.testing.assert_allclose(model.embed(shouted, pooling="mean"), means, atol=1e-5)
    longer = [s.mean(axis=0) for s in _states(exported, _TEXTS, length=30)]
    np.testing.assert_allclose(model.embed(_TEXTS, pooling="mean", length=30), longer, atol=1e-5)


def test_a_directory_alone_is_averaged_up_to_the_length_of_its_tokenizer(exported, tmp_path):
    home = tmp_path / "plain"
    shutil.copytree(exported, home)
    path = home / "tokenizer_config.json"
    for limit, length in ((9, 9), (10**30, 48)):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": limit}))
        found = bert_jax.load(home).embed(_TEXTS)
        expected = [s.mean(axis=0) for s in _states(exported, _TEXTS, length=length)]
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ([("CNN", {})], "CNN is not supported before"),
        ([("Normalize", {})], "Normalize is not supported"),
        ([], "has no Pooling"),
        ([("Pooling", {"pooling_mode": "weightedmean"})], "weightedmean.* is not one of mean, cls"),
        ([("Pooling", {"pooling_mode": ["cls", "mean"]})], "pooling_mode .*cls.* is not one of"),
        ([("Pooling", {}), ("Dense", {"activation_function": "os.system"})], "'os.system' is not"),
        ([("Pooling", {}), ("Dense", {"use_residual": True})], "use_residual is true"),
        ([("Pooling", {}), ("Dense", {})], "has no model.safetensors"),
    ],
)
def test_what_is_not_read_is_named(layout, modules, said):
    with pytest.raises(UsageError, match=said):
        sentence_transformers.read(layout(*modules))


@pytest.mark.parametrize("length", [-5, 2, True, "9"])
def test_a_length_is_a_number_of_tokens_with_room_for_one(layout, length):
    home = layout(("Pooling", {}), max_seq_length=length)
    with pytest.raises(UsageError, match=r"max_seq_length is .*expected an integer"):
        sentence_transformers.read(home)


_LEGACY = {
    "word_embedding_dimension": 32,
    "pooling_mode_cls_token": True,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
    "pooling_mode_weightedmean_tokens": False,
    "pooling_mode_lasttoken": False,
}


def test_an_export_is_an_embedder(trained, exported, tmp_path, capsys):
    """As the run embeds with the same options; without one nothing but the encoder is written."""
    home = tmp_path / "embedder"
    command = ["export", str(trained), "--output-dir", str(home)]
    assert main([*command, "--pooling", "cls", "--normalize", "--max-length", "12"]) == 0
    assert f'sentence_transformers.SentenceTransformer("{home}")' in capsys.readouterr().out
    added = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": f"{_MODULE}Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{_MODULE}Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{_MODULE}Normalize"},
        ],
        "1_Pooling/config.json": {**_LEGACY, "include_prompt": True, "pooling_mode": "cls"},
        "sentence_bert_config.json": {"max_seq_length": 12, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {}, "similarity_fn_name": "cosine"},
    }
    for name, content in added.items():
        assert json.loads((home / name).read_text()) == content, name
    plain, found = (
        {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        for folder in (exported, home)
    )
    assert found.keys() == plain.keys() | added.keys()
    for name in plain.keys() - {"README.md"}:
        assert found[name].read_bytes() == plain[name].read_bytes(), name
    card = found["README.md"].read_text()
    assert "library_name: sentence-transformers\npipeline_tag: sentence-similarity" in card

    vectors = bert_jax.load(home).embed(_TEXTS)
    run = bert_jax.load(trained)
    expected = run.embed(_TEXTS, pooling="cls", normalize=True, length=12)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_by_default_an_embedder_has_the_length_of_the_model(trained, tmp_path):
    home = tmp_path / "embedder"
    command = ["export", str(trained), "--output-dir", str(home), "--pooling", "mean"]
    assert main(command) == 0
    recipe = sentence_transformers.read(home)
    assert (recipe.length, recipe.pooling, recipe.steps) == (48, "mean", ())
    found, expected = (bert_jax.load(each).embed(_TEXTS) for each in (home, trained))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--normalize"], "--normalize needs --pooling"),
        (["--max-length", "9"], "--max-length 9 needs --pooling"),
        (["--pooling", "mean", "--max-length", "2"], "--max-length 2: it must be at least 3"),
        (
            ["--pooling", "mean", "--max-length", "49"],
            "--max-length 49: the model has only 48 positions",
        ),
        (
            ["--pooling", "cls", "--format", "tf1"],
            "--pooling cls: a TF1 checkpoint has no pooling; leave out --pooling",
        ),
    ],
)
def test_what_no_embedder_is_exported_for_is_named(trained, tmp_path, capsys, options, said):
    command = ["export", str(trained), "--output-dir", str(tmp_path / "out"), *options]
    assert main(command) == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_no_name_leaves_the_directory(layout):
    home = layout(("Pooling", {}))
    for place in ("../1_Pooling", "/etc", "..", 3):
        stages = json.loads((home / "modules.json").read_text())
        stages[1]["path"] = place
        (home / "modules.json").write_text(json.dumps(stages))
        with pytest.raises(UsageError, match="is not a module with a type and a path"):
            sentence_transformers.read(home)
