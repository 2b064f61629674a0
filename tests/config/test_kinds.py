"""Kinds: options that only the chosen entry of a registry has."""

import json

import pytest

from bert_jax.config import (
    HookConfig,
    Mixing,
    Optimizer,
    Schedule,
    TrainConfig,
    flatten,
    from_dict,
    to_dict,
)
from bert_jax.config.fields import Share, fields_of, section, setting
from bert_jax.config.resume import allowed_changes
from bert_jax.config_checks import validate
from bert_jax.config_loader import load_config, override
from bert_jax.errors import ResumeRefused, UsageError
from bert_jax.registry import OPTIMIZERS
from bert_jax.update.muon import Muon
from tests import tiny_corpus


@section
class Scaled(Optimizer, kind="scaled"):
    """A custom kind with an option of each sort."""

    share: Share = setting(0.5, "A share.")
    sizes: tuple[int, ...] = setting((1, 2), "Several numbers.", free=True)


@pytest.fixture
def scaled(monkeypatch):
    monkeypatch.setattr(OPTIMIZERS, "_entries", dict(OPTIMIZERS._entries))
    OPTIMIZERS.register("scaled", Scaled)


def test_a_kind_brings_its_options_and_takes_them_along():
    config = load_config("bert_base", ["optimizer.momentum=0.9", "optimizer.kind=muon"])
    assert config.optimizer == Muon(momentum=0.9)
    assert flatten(config)["optimizer.momentum"] == 0.9
    again = from_dict(json.loads(json.dumps(to_dict(config))), TrainConfig)
    assert again == config and hash(again) == hash(config)
    assert again != override(config, ["optimizer.momentum=0.95"])
    # Shared options stay, the options of the old kind go.
    adamw = override(config, ["optimizer.learning_rate=3e-4", "optimizer.kind=adamw"])
    assert adamw.optimizer.kind == "adamw" and adamw.optimizer.learning_rate == 3e-4
    assert not {"optimizer.momentum", "optimizer.bias_correction"} & flatten(adamw).keys()


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        (["optimizer.momentum=0.9"], "optimizer.momentum", "muon"),
        (["optimizer.momentum=0.9", "optimizer.beta1=0"], "optimizer.momentum", "muon"),
        (["optimizer.power=2"], "optimizer.power", "no such field"),
        (["optimizer.schedule.power=2"], "optimizer.schedule.power", "polynomial"),
        (["optimizer.kind=muon", "optimizer.momentum=1"], "optimizer.momentum", "< 1"),
        (["optimizer.kind=muon", "optimizer.momentum=x"], "optimizer.momentum", "float"),
        (["optimizer.kind=muon", "optimizer.bias_correction=true"], "bias_correction", "lamb"),
        (["optimizer.kind=scaled", "optimizer.share=2"], "optimizer.share", "<= 1"),
        (["optimizer.kind=scaled", "optimizer.sizes=3"], "optimizer.sizes", "array"),
        (["optimizer.kind=muon", "optimizer.momntum=0.9"], "optimizer.momntum", "'momentum'"),
        (["optimizer.kind=3"], "optimizer", "name of a kind"),
        (["hooks=[{}]"], "hooks.0", "name of a kind"),
        (['hooks=[{"kind": "early_stopping", "patience": 0}]'], "hooks.0.patience", ">= 1"),
        (['hooks=["early_stoping"]'], "hooks.0.kind", "'early_stopping'"),
    ],
)
def test_an_option_that_the_kind_does_not_have_is_an_error(scaled, changes, path, message):
    with pytest.raises(UsageError) as caught:
        load_config("bert_base", changes)
    assert path in str(caught.value) and message in str(caught.value)


def test_a_custom_kind_is_written_like_a_built_in_one(scaled):
    config = load_config("bert_base", ["optimizer.kind=scaled", "optimizer.sizes=[7]"])
    assert config.optimizer == Scaled(sizes=(7,))
    assert from_dict(to_dict(config), TrainConfig) == config
    short = load_config("bert_base", ['hooks=["best_checkpoint"]'])
    assert short.hooks == (HookConfig.of_kind("best_checkpoint")(figure=""),)


def test_a_function_is_a_kind_without_options(monkeypatch):
    monkeypatch.setattr(OPTIMIZERS, "_entries", dict(OPTIMIZERS._entries))
    OPTIMIZERS.register("plain", lambda config: (config.kind, config.beta1))
    config = load_config("bert_base", ["optimizer.kind=plain", "optimizer.beta1=0.5"])
    assert config.optimizer.transformation() == ("plain", 0.5)


def test_a_kind_of_a_file_that_was_not_executed_keeps_its_options():
    values = to_dict(load_config("bert_base"))
    values["optimizer"] |= {"kind": "from-a-file", "warmth": 3}
    config = from_dict(values, TrainConfig)
    assert config.optimizer.warmth == 3 and to_dict(config) == values
    with pytest.raises(UsageError, match=r"optimizer.kind is 'from-a-file'"):
        validate(config)


def test_an_option_of_a_kind_declares_whether_it_may_change_on_resume(scaled):
    before = override(tiny_corpus.tiny_config(), ["optimizer.kind=scaled"])
    free = override(before, ["optimizer.sizes=[3]"])
    changed = override(before, ["optimizer.share=0.25"])
    assert allowed_changes(before, free, name="run") == []
    with pytest.raises(ResumeRefused, match=r"optimizer.share: 0.5 -> 0.25"):
        allowed_changes(before, changed, name="run")
    allowed = ["optimizer.share"]
    assert allowed_changes(before, changed, allowed=allowed, name="run") == [
        ("optimizer.share", 0.5, 0.25)
    ]


def test_every_option_of_every_kind_is_documented():
    for base in (Optimizer, Schedule, Mixing, HookConfig):
        for name in base.table.names():
            for option, field in fields_of(base.of_kind(name)).items():
                assert field.doc.endswith("."), option
