"""Options of entries: declared by the entry, stored beside the field that chooses it."""

import json
import subprocess
import sys

import pytest

from bert_jax.config import (
    OptimizerConfig,
    TrainConfig,
    flatten,
    from_dict,
    option_paths,
    setting_of,
    settings,
    to_dict,
)
from bert_jax.config.entries import all_options, entry, entry_of, options_of, own_options
from bert_jax.config.fields import DATA, RECIPE, SHAPE, setting
from bert_jax.config_checks import validate
from bert_jax.config_loader import load_config, override
from bert_jax.errors import ResumeRefused, UsageError
from bert_jax.model.positions import Position
from bert_jax.objectives.objective import Objective
from bert_jax.registry import MASKS, OBJECTIVES, OPTIMIZERS, POSITIONS, SCHEDULES
from bert_jax.workdir import resume_policy
from tests import tiny_corpus


@entry
class Scaled:
    """An entry of any table, with an option of each type."""

    share: float = setting(0.5, RECIPE, "A share.", least=0, most=1)
    sizes: tuple[int, ...] = setting((1, 2), RECIPE, "Several numbers.")

    def __call__(self, *_, **__):
        return self


class Shifted(Position):
    @entry
    class Options:
        shift: int = setting(3, SHAPE, "Positions that are added.", least=0)


@entry
class ScaledObjective(Scaled, Objective):
    """The same, as an objective."""


@pytest.fixture
def tables(monkeypatch):
    for table in (OPTIMIZERS, SCHEDULES, MASKS, POSITIONS, OBJECTIVES):
        monkeypatch.setattr(table, "_entries", dict(table._entries))
    for table in (OPTIMIZERS, MASKS):
        table.register("scaled", Scaled)
    OBJECTIVES.register("scaled", ScaledObjective)
    POSITIONS.register("shifted", Shifted)


def test_the_options_of_a_built_in_entry_are_its_own():
    config = load_config("bert_base", ["optimizer.momentum=0.9", "optimizer.kind=muon"])
    assert entry_of(config.optimizer, "kind").momentum == 0.9
    assert flatten(config)["optimizer.momentum"] == 0.9
    assert own_options(config.optimizer, "schedule") == {}
    again = from_dict(json.loads(json.dumps(to_dict(config))))
    assert again == config and hash(again) == hash(config)
    assert again != override(config, ["optimizer.momentum=0.95"])
    # By default it is there, too, and goes with its entry.
    by_default = override(load_config("bert_base"), ["optimizer.kind=muon"])
    assert flatten(by_default)["optimizer.momentum"] == 0.95
    assert "optimizer.momentum" not in flatten(override(by_default, ["optimizer.kind=adamw"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["optimizer.momentum=0.9"], "optimizer.momentum is 0.9, which kind bert_adamw does not"),
        (["optimizer.momentum=0.9"], "does not read: only muon"),
        (["optimizer.power=2"], "schedule bert_linear does not read: only polynomial"),
        (["optimizer.kind=muon", "optimizer.momentum=1"], "momentum is 1.0; it must be below 1"),
        (["optimizer.kind=muon", "optimizer.momentum=x"], "momentum: expected float, got 'x'"),
        (["optimizer.kind=scaled", "optimizer.share=2"], "optimizer.share is 2.0; it must be at"),
        (["optimizer.kind=scaled", "optimizer.sizes=3"], "optimizer.sizes: expected a list, got 3"),
        (["optimizer.momntum=0.9"], "Did you mean 'optimizer.momentum'?"),
        (["momentum=0.9"], "Did you mean 'optimizer.momentum'?"),
        (["data.share=0.2"], "data.share is 0.2, which mask tokens does not read: only scaled"),
        (["compute.share=0.2"], "no field 'share'"),
    ],
)
def test_what_no_option_can_be(tables, changes, message):
    with pytest.raises(UsageError) as caught:
        load_config("bert_base", changes)
    assert message in str(caught.value)


def test_any_table_may_have_entries_with_options(tables):
    changes = ["data.mask=scaled", "data.share=0.25", "model.position_embedding_type=shifted",
               "model.shift=5", "optimizer.kind=scaled", "optimizer.sizes=[7]"]  # fmt: skip
    config = load_config("bert_base", changes)
    assert entry_of(config.data, "mask") == Scaled(share=0.25)
    assert entry_of(config.optimizer, "kind") == Scaled(sizes=(7,))
    assert options_of(config.model, Shifted).shift == 5
    assert entry_of(from_dict({"objective": "scaled", "share": 1}), "objective").share == 1.0
    assert from_dict(to_dict(config)) == config


def test_an_entry_that_is_not_there_yet_keeps_its_options():
    """A run of a file of the user's is read before that file is executed."""
    values = to_dict(load_config("bert_base"))
    values["optimizer"] |= {"kind": "from-a-file", "warmth": 3}
    config = from_dict(values)
    assert config.optimizer.options["warmth"] == 3 and to_dict(config) == values
    with pytest.raises(UsageError, match=r"optimizer.kind is 'from-a-file'"):
        validate(config)


def test_an_option_says_whether_it_may_change_on_resumption(tables, tmp_path):
    changes = ["optimizer.kind=muon", "model.position_embedding_type=shifted"]
    before = override(tiny_corpus.tiny_config(), changes)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"config": to_dict(before)}))
    shifted = override(before, ["model.shift=4"])
    changed = override(before, ["optimizer.momentum=0.9"])
    with pytest.raises(ResumeRefused, match=r"optimizer.momentum: 0.95 -> 0.9"):
        resume_policy.require(file, changed, name="run")
    allowed = ["optimizer.momentum"]
    assert resume_policy.require(file, changed, allowed=allowed, name="run") == [
        ("optimizer.momentum", 0.95, 0.9)
    ]
    with pytest.raises(UsageError, match=r"model.shift defines the run"):
        resume_policy.require(file, shifted, allowed=["model.shift"], name="run")


def test_an_option_cannot_hide_a_field(tables):
    @entry
    class Hiding:
        beta1: float = setting(0.5, DATA, "It has the name of a field.")

    OPTIMIZERS.register("hiding", Hiding)
    with pytest.raises(UsageError, match=r"optimizer.beta1: an option of an entry has the name of"):
        load_config("bert_base", ["optimizer.kind=hiding"])


def test_a_built_in_default_has_no_options():
    """So a config of BERT is read without what its entries import."""
    for cls in (TrainConfig, *(type(value) for value in vars(TrainConfig()).values())):
        for field, value, *_ in all_options(cls) if hasattr(cls, "options") else ():
            assert value != getattr(cls, field)
    program = "from bert_jax.config_loader import load_config; load_config('bert_base')"
    program += "; import sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_option_is_described():
    assert not option_paths().keys() & settings().keys()
    for path, (described, _, _) in option_paths().items():
        assert described.doc.endswith(".") and setting_of(path) is described


def test_options_are_given_in_python_too():
    config = OptimizerConfig(kind="muon", options={"momentum": 0.9})
    assert entry_of(config, "kind").momentum == 0.9
    with pytest.raises(TypeError, match="momentum"):
        OptimizerConfig(kind="muon", momentum=0.9)  # pyright: ignore[reportCallIssue]
