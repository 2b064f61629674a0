"""Every shipped config can leave, or says before it begins what is in the way."""

import dataclasses
import functools
import json

from bert_jax.__main__ import main
from bert_jax.config_loader import load_config, shipped_names
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface
from bert_jax.model import bert
from bert_jax.pretrained.export import export_warning
from bert_jax_lab.doctor import settings
from tests.models import vocabulary

# With pairs of segments and a norm in front of everything, which no class of transformers has.
_STAYS = (
    "modern_small_cpu",
    "model.first_norm=true",
    "model.type_vocab_size=2",
    "data.sequence_format=sentence_pairs",
    "objective=mlm+nsp",
)
_REMEDIES = (
    "model.type_vocab_size=0",
    "model.first_norm=false",
    "data.sequence_format=full_sentences",
    "objective=mlm",
)
_SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 60,
    "max_position_embeddings": 16,
}


@functools.cache
def _refusal(model, head, folder, words) -> str:
    """Returns why a model of these fields is not written; nothing where it is, and read back."""
    params = bert.init_params(model, head, seed=0)
    try:
        huggingface.write(folder, params, model, head=head, tokenizer=words)
    except UsageError as error:
        return str(error)
    assert set(huggingface.read(folder).head.parts) == set(head.parts)
    return ""


def test_a_config_says_whether_it_can_leave(tmp_path):
    words, said = vocabulary(tmp_path / "words", size=60), {}
    for name in shipped_names():
        config = load_config(name)
        head = config.head.with_parameters()
        said[name] = huggingface.refusal(config.model, head)
        narrow = {"embedding_size": 8} if config.model.embedding_size else {}
        model = dataclasses.replace(config.model, **_SMALL, **narrow)
        folder = tmp_path / str(abs(hash((model, head))))
        assert _refusal(model, head, folder, words) == said[name], name
    assert not any(said.values())
    name, *changes = _STAYS
    config = load_config(name, changes)
    why = huggingface.refusal(config.model, config.head)
    remedies = " ".join(f"set {change}" for change in _REMEDIES)
    assert why.endswith(f"to export a model, train it with {remedies}")
    assert "model.first_norm is " in why and "model.type_vocab_size is " in why
    assert not export_warning(load_config(name, [*changes, *_REMEDIES])), "the remedy is one"


def test_it_is_said_before_anything_begins(capsys):
    name, *changes = _STAYS
    assert (
        main(["config", "show", name, *(word for change in changes for word in ("--set", change))])
        == 0
    )
    shown = capsys.readouterr()
    assert json.loads(shown.out)["name"] == name
    assert shown.err.startswith("note: transformers cannot load this model: model.type_vocab_size")
    assert shown.err.count("--set ") == len(_REMEDIES)
    found = settings.export(load_config(name, changes))
    assert found.result == "warned" and found.remedy.count("set ") == len(_REMEDIES)
    assert main(["config", "show", "bert_base"]) == 0
    assert not capsys.readouterr().err
