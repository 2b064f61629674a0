"""Fields that other systems read without a default (read_by_others.json, with its sources)."""

import json
from pathlib import Path

import pytest

from bert_jax.config import HeadConfig
from bert_jax.interchange import huggingface, sentence_transformers
from bert_jax.interchange.sentence_transformers import EmbeddingRecipe
from tests.golden import make_modernbert
from tests.models import SIZES, random_params, vocabulary

_LISTED = json.loads((Path(__file__).parent / "read_by_others.json").read_text())
_MODELS = {
    "bert": (SIZES["small"], HeadConfig()),
    "modernbert": (make_modernbert.MODEL, make_modernbert.HEAD),
}


def nulls(value, path=""):
    """Yields the paths of what is null, at any depth."""
    if value is None:
        yield path
    listed = dict(enumerate(value)) if isinstance(value, list) else value
    for name, each in listed.items() if isinstance(listed, dict) else ():
        yield from nulls(each, f"{path}.{name}")


@pytest.mark.parametrize("family", _MODELS)
def test_no_field_that_others_need_is_left_out_or_null(family, tmp_path):
    model, head = _MODELS[family]
    directory, words = tmp_path / "hf", vocabulary(tmp_path / "words")
    huggingface.write(directory, random_params(model, head), model, tokenizer=words, head=head)
    recipe = EmbeddingRecipe(length=16, steps=(sentence_transformers.NORMALIZE,))
    sentence_transformers.write(directory, recipe, width=model.hidden_size)
    for reader, listed in _LISTED.items():
        for of in ("every", family):
            for name, fields in listed[of].items():
                written = json.loads((directory / name).read_text())
                lacking = [field for field in fields if written.get(field) is None]
                assert not lacking, f"{reader} cannot read {name}"
    # Of a tokenizer null is a value: whether letters keep their marks is as it changes case.
    files = sorted(set(directory.rglob("*.json")) - set(directory.glob("tokenizer*")))
    assert len(files) == 5
    assert not [place for file in files for place in nulls(json.loads(file.read_text()))]
    # A converter looks for this very name (conversion/base.py).
    stages = json.loads((directory / "modules.json").read_text())
    assert stages[1]["type"] == "sentence_transformers.models.Pooling"
    assert (directory / stages[1]["path"] / "config.json").is_file()
