"""Checkpoints that other systems vary without changing the model, for each family and variation.

The directory of the same model as bert-jax writes it is the expected result.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface
from bert_jax.registry import FAMILIES
from tests.golden import make_eurobert, make_modernbert
from tests.models import SIZES, assert_same, edit_config, random_params, vocabulary
from tests.objectives.test_replaced_token import TINY, tiny_config

Tensors = dict[str, np.ndarray]

_MLM = HeadConfig(parts=("mlm",))
_GELU = dataclasses.replace(SIZES["small"], hidden_act="gelu")
_ROTARY = {"position_embedding_type": "rotary_interleaved"}
# Of each family: its model, and the names of the tied tensors (the output, then the embedding).
MODELS: dict[str, ModelConfig] = {
    "bert": _GELU,
    "roberta": _GELU,
    "electra": dataclasses.replace(_GELU, embedding_size=8),
    "modernbert": make_modernbert.MODEL,
    "roformer": dataclasses.replace(_GELU, **_ROTARY),
    "roberta-prelayernorm": dataclasses.replace(_GELU, norm_placement="pre"),
    "eurobert": dataclasses.replace(make_eurobert.MODEL, tie_word_embeddings=True),
}


def written(folder: Path, family: str, head: HeadConfig = _MLM, **changes: Any) -> Path:
    """A directory of the family with random parameters."""
    model = dataclasses.replace(MODELS[family], **changes)
    words = vocabulary(folder / "words", size=61)
    head = huggingface.with_classifier(model, _MLM, head) if head.labels else head
    huggingface.write(
        folder / "hf", random_params(model, head), model, head=head, tokenizer=words,
        model_type=family,
    )  # fmt: skip
    return folder / "hf"


def change(directory: Path, edit: Callable[[Tensors], Tensors | None], **config: Any) -> None:
    """Replaces tensors and fields of `config.json`; a field of None is removed."""
    tensors = load_file(directory / "model.safetensors")
    save_file(edit(tensors) or tensors, directory / "model.safetensors", {"format": "pt"})
    edit_config(directory, **config)


def output_names(family: str) -> tuple[str, str, str, str]:
    """Returns the names of the embedding, of the tied output, and of the bias under both names."""
    fixed = FAMILIES[family].names.fixed
    table, decoder = fixed["encoder.embeddings.word"], fixed["mlm.decoder"]
    return f"{table}.weight", f"{decoder}.weight", f"{fixed['mlm']}.bias", f"{decoder}.bias"


# --- variations that are read: (tensors, family) -> tensors --------------------------------------


def under_the_tied_names(tensors: Tensors, family: str) -> None:
    """safetensors.torch.save_model keeps one name of tied tensors, the first by alphabet."""
    table, decoder, bias, copy = output_names(family)
    tensors[decoder] = tensors.pop(table)
    if bias in tensors:
        tensors[copy] = tensors.pop(bias)


def under_both_names(tensors: Tensors, family: str) -> None:
    table, decoder, bias, copy = output_names(family)
    tensors[decoder] = tensors[table].copy()
    if bias in tensors:
        tensors[copy] = tensors[bias].copy()


def with_prefix(prefix: str) -> Callable[[Tensors, str], Tensors]:
    return lambda tensors, family: {prefix + name: t for name, t in tensors.items()}


def with_both(tensors: Tensors, family: str) -> Tensors:
    under_the_tied_names(tensors, family)
    return {f"_orig_mod.{name}": t for name, t in tensors.items()}


def with_inner_wrappers(tensors: Tensors, family: str) -> Tensors:
    """As FSDP with activation checkpointing names the layers."""
    inner = r"\1_fsdp_wrapped_module._checkpoint_wrapped_module."
    return {
        re.sub(r"(\blayers?\.\d+\.)", inner, f"_fsdp_wrapped_module.{name}"): t
        for name, t in tensors.items()
    }


def without_base(tensors: Tensors, family: str) -> Tensors:
    base = f"{FAMILIES[family].base}."
    return {name.removeprefix(base): t for name, t in tensors.items()}


def with_old_norms(tensors: Tensors, family: str) -> Tensors:
    old = {"weight": "gamma", "bias": "beta"}
    pattern = r"(LayerNorm|layer_norm|norm)\.(weight|bias)$"
    return {re.sub(pattern, lambda m: f"{m[1]}.{old[m[2]]}", n): t for n, t in tensors.items()}


def with_buffers(tensors: Tensors, family: str) -> None:
    base = FAMILIES[family].base
    tensors[f"{base}.embeddings.position_ids"] = np.arange(20)[None]
    tensors[f"{base}.embeddings.token_type_ids"] = np.zeros((1, 20), np.int64)
    tensors[f"{base}.layers.0.attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)


READ: dict[str, Callable[[Tensors, str], Tensors | None]] = {
    "the tied names": under_the_tied_names,
    "both tied names": under_both_names,
    "torch.compile": with_prefix("_orig_mod."),
    "DataParallel": with_prefix("module."),
    "a wrapper's attribute": with_prefix("model."),
    "nested wrappers": with_prefix("_orig_mod.module.net.encoder."),
    "the tied names in a wrapper": with_both,
    "wrappers inside": with_inner_wrappers,
    "no base": without_base,
    "gamma and beta": with_old_norms,
    "buffers": with_buffers,
}


# The variations that depend on the names of a family.
_BY_NAMES = ("both tied names", "the tied names in a wrapper", "no base")


@pytest.mark.parametrize(
    ("family", "variation"),
    [("bert", name) for name in READ]
    + [(family, name) for family in sorted(MODELS.keys() - {"bert"}) for name in _BY_NAMES],
)
def test_variations_are_read_as_the_model(tmp_path, family, variation):
    directory = written(tmp_path, family)
    expected = huggingface.read(directory)
    change(directory, lambda tensors: READ[variation](tensors, family))
    found = huggingface.read(directory)
    assert (found.model, found.head) == (expected.model, expected.head)
    assert_same(found.params, expected.params)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_short_bias_is_padded_with_zeros(tmp_path, family, capsys):
    """transformers before 4 resized the embedding and left the bias as it was."""
    directory = written(tmp_path, family)
    *_, bias, copy = output_names(family)
    expected = huggingface.read(directory).params
    expected["mlm"]["bias"][-3:] = 0

    def cut(tensors):
        tensors[bias] = tensors[bias][:-3].copy()

    change(directory, cut)
    assert_same(huggingface.read(directory).params, expected)
    assert f"padding {bias} with 3 zeros" in capsys.readouterr().err
    if copy == bias:
        return

    def add_copy(tensors):  # in memory the copy was resized
        tensors[copy] = np.pad(tensors[bias], (0, 3), constant_values=2.0)

    change(directory, add_copy)
    expected["mlm"]["bias"][-3:] = 2
    assert_same(huggingface.read(directory).params, expected)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("says_so", [True, False])
def test_an_output_matrix_that_is_not_tied(tmp_path, family, says_so, capsys):
    """The config may still tie it: transformers 5 then keeps both matrices."""
    directory = written(tmp_path, family, tie_word_embeddings=False)
    described = json.loads((directory / "config.json").read_text())
    assert described["tie_word_embeddings"] is False
    tensors = load_file(directory / "model.safetensors")
    table, decoder, bias, copy = output_names(family)
    assert {table, decoder} < set(tensors) and (copy in tensors) == (bias in tensors)
    if not says_so:
        change(directory, lambda _: None, tie_word_embeddings=True)
    found = huggingface.read(directory)
    model = dataclasses.replace(MODELS[family], tie_word_embeddings=False)
    assert (found.model, found.head) == (model, _MLM)
    assert_same(found.params, random_params(model, _MLM))
    assert ("so the two are read as untied" in capsys.readouterr().err) == (not says_so)
    change(directory, lambda t: {n: x for n, x in t.items() if n != decoder})
    if says_so:
        with pytest.raises(UsageError, match=f"missing {re.escape(decoder)}"):
            huggingface.read(directory)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("part", ["sequence_classifier", "token_classifier"])
def test_a_number_of_labels_without_names(tmp_path, family, count, part):
    names = tuple(f"LABEL_{number}" for number in range(count)) if count > 1 else ("LABEL_0",)
    parts = ("pooler", part) if part == "sequence_classifier" else (part,)
    directory = written(tmp_path, family, HeadConfig(parts=parts, labels=names))
    expected = huggingface.read(directory)
    assert expected.head.labels == (names if count > 1 else ())
    change(directory, lambda _: None, id2label=None, label2id=None, num_labels=count)
    found = huggingface.read(directory)
    assert found.head == expected.head
    assert_same(found.params, expected.params)
    # Of two that disagree, the one that fits the tensors.
    change(directory, lambda _: None, id2label={str(i): f"x{i}" for i in range(5)})
    assert huggingface.read(directory).head == expected.head
    change(directory, lambda _: None, id2label=dict(enumerate(names)), num_labels=9)
    assert huggingface.read(directory).head == expected.head


# --- one line with the correction ----------------------------------------------------------------


def resized(rows: int) -> Callable[[Tensors], None]:
    def edit(tensors):
        table, bias = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
        for name in (table, bias):
            extra = [(0, rows - 64), *[(0, 0)] * (tensors[name].ndim - 1)]
            tensors[name] = np.pad(tensors[name], extra)

    return edit


def two_encoders(tensors: Tensors) -> Tensors:
    return {f"{side}.{name}": t for side in ("student", "teacher") for name, t in tensors.items()}


def partly_wrapped(tensors: Tensors) -> Tensors:
    wrapped = {f"model.net.{name}": t for name, t in tensors.items()}
    return wrapped | {"model.loss.weight": np.ones(2, np.float32), "step": np.ones(1, np.float32)}


def long_bias(tensors: Tensors) -> None:
    tensors["cls.predictions.bias"] = np.zeros(70, np.float32)


def both_spellings(tensors: Tensors) -> None:
    norm = "bert.embeddings.LayerNorm"
    tensors[f"{norm}.gamma"] = tensors[f"{norm}.weight"] + 1


# What is wrong -> the end of the message, and the options of `read` that it names.
_REFUSED: dict[str, tuple[Callable[[Tensors], Tensors | None], str, dict[str, Any]]] = {
    "several encoders": (
        two_encoders,
        "name them with `ignore_unexpected` to read the rest",
        {"ignore_unexpected": ["teacher.*"]},
    ),
    "names outside of the wrapper": (
        partly_wrapped,
        "the names of the encoder begin with 'model.net.', but model.loss.weight, step do not; "
        "name them with `ignore_unexpected` to read the rest",
        {"ignore_unexpected": ["model.loss.*", "step"]},
    ),
    "a bias longer than the vocabulary": (
        long_bias,
        "cls.predictions.bias is [70], expected [64]. `allow_missing_heads` reads the rest "
        "without them",
        {"allow_missing_heads": True},
    ),
    "a larger vocabulary": (
        resized(128),
        "bert.embeddings.word_embeddings.weight is [128, 24], expected [64, 24]; "
        "cls.predictions.bias is [128], expected [64]",
        {"vocab_size": 128},
    ),
    "two spellings of one name": (
        both_spellings,
        "bert.embeddings.LayerNorm.gamma and bert.embeddings.LayerNorm.weight are both "
        "bert.embeddings.LayerNorm.weight; remove the wrong one from the file",
        {},
    ),
}


@pytest.mark.parametrize("fault", _REFUSED)
def test_one_line_names_what_reads_the_model(tmp_path, fault):
    edit, message, correction = _REFUSED[fault]
    directory = written(tmp_path, "bert")
    expected = huggingface.read(directory).params
    change(directory, edit)
    with pytest.raises(UsageError) as caught:
        huggingface.read(directory)
    assert str(caught.value).endswith(message) and "\n" not in str(caught.value)
    if rows := correction.pop("vocab_size", 0):
        change(directory, lambda _: None, vocab_size=rows)
        found = huggingface.read(directory).params
        assert len(found["mlm"]["bias"]) == rows
    elif correction:
        found = huggingface.read(directory, **correction).params
        assert_same(found, {part: expected[part] for part in found})
        assert ("mlm" in found) == ("ignore_unexpected" in correction)


# --- every way in --------------------------------------------------------------------------------


def test_both_models_of_a_pair(tmp_path):
    """A discriminator and its generator, each with the names of its training wrapper."""
    head, words = tiny_config().head, vocabulary(tmp_path / "words", size=97)
    model = dataclasses.replace(TINY, embedding_sharing="embeddings")
    huggingface.write(
        tmp_path / "hf", random_params(model, head), model, head=head, tokenizer=words
    )
    expected = huggingface.read(tmp_path / "hf")
    change(tmp_path / "hf", lambda tensors: with_prefix("module.")(tensors, "electra"))
    change(tmp_path / "hf" / "generator", lambda tensors: with_both(tensors, "electra"))
    found = huggingface.read(tmp_path / "hf")
    assert (found.model, found.head) == (expected.model, head)
    assert_same(found.params, expected.params)
