"""Which differences a resumed run accepts."""

import pytest

from bert_jax.config.resume import allowed_changes
from bert_jax.config_loader import override
from bert_jax.errors import ResumeRefused, UsageError
from tests.tiny_corpus import tiny_config

_OLD = tiny_config()
_PHASE = 'phases=[{"steps": 3}, {"steps": 4}, {"steps": 5, "learning_rate": 1e-4}]'


@pytest.mark.parametrize(
    ("assignment", "allowed", "paths"),
    [
        ("evaluation.every_steps=7", [], []),
        ('hooks=["best_checkpoint"]', [], []),
        ("name=other", [], []),
        ("optimizer.learning_rate=1e-4", ["optimizer"], ["optimizer.learning_rate"]),
        ("optimizer.schedule=constant", ["optimizer.schedule"], ["optimizer.schedule.kind"]),
        ("data.sequence_format=documents", ["data.sequence_format"], ["data.sequence_format"]),
        ("phases.1.steps=50", ["phases.*"], ["phases.1.steps"]),
    ],
)
def test_free_options_and_permitted_ones_may_change(assignment, allowed, paths):
    new = override(_OLD, [assignment])
    assert [path for path, _, _ in allowed_changes(_OLD, new, allowed=allowed, name="w")] == paths
    if allowed:
        with pytest.raises(ResumeRefused) as caught:
            allowed_changes(_OLD, new, name="w")
        assert f"`allow_change` {paths[0]}" in str(caught.value) and caught.value.exit_code == 3


def test_a_longer_run_is_permitted_by_section():
    new = override(_OLD, [_PHASE])
    changes = allowed_changes(_OLD, new, allowed=["phases"], name="w")
    assert ("phases.2.learning_rate", "absent", 1e-4) in changes
    with pytest.raises(ResumeRefused) as caught:
        allowed_changes(_OLD, new, name="w")
    assert "`allow_change` phases;" in str(caught.value)


@pytest.mark.parametrize(
    ("others", "allowed", "said"),
    [
        ([("corpus", "a", "b")], ["corpus"], None),
        ([("corpus.wiki", "a", "b")], ["corpus"], None),
        ([("corpus", "a", "b")], [], "`allow_change` corpus"),
        ([("tokenizer", "a", "b")], ["tokenizer"], "tokenizer: 'a' -> 'b'"),
        ([("tokenizer", "a", "b")], [], "w/tokenizer makes a corpus"),
        ([("`init_from`", "a", None)], [], "`init_from`: 'a' -> None"),
    ],
)
def test_another_input_is_named(others, allowed, said):
    if said is None:
        assert allowed_changes(_OLD, _OLD, others=others, allowed=allowed, name="w") == others
        return
    with pytest.raises(ResumeRefused) as caught:
        allowed_changes(_OLD, _OLD, others=others, allowed=allowed, name="w")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "change",
    ["model.hidden_size=48", "objective=mlm", "optimizer.kind=lamb", 'head.parts=["mlm"]'],
)
def test_what_the_saved_arrays_depend_on_cannot_change(change):
    new = override(_OLD, [change, "optimizer.learning_rate=1e-4"])
    for allowed in ([], ["optimizer", "model", "objective", "head"]):
        with pytest.raises(ResumeRefused) as caught:
            allowed_changes(_OLD, new, allowed=allowed, name="w")
        assert "allow_change" not in str(caught.value)
        assert change.partition("=")[0] in str(caught.value)


def test_options_and_corpus_of_a_run_without_a_checkpoint_may_change():
    new = override(_OLD, ["model.hidden_size=48", "optimizer.learning_rate=1e-4"])
    corpus, beginning = ("corpus", "a", "b"), ("`init_from`", None, "a")
    changes = allowed_changes(_OLD, new, others=[corpus], name="w", has_steps=False)
    assert {path for path, _, _ in changes} == {
        "corpus", "model.hidden_size", "optimizer.learning_rate"
    }  # fmt: skip
    with pytest.raises(ResumeRefused, match=r"no checkpoint yet: delete w, or use another"):
        allowed_changes(_OLD, new, others=[corpus, beginning], name="w", has_steps=False)


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        ("log_every_steps", "may change without it"),
        ("evaluation", "may change without it"),
        ("optimizer.learning_rat", "Did you mean 'optimizer.learning_rate'?"),
    ],
)
def test_a_permission_that_nothing_needs_is_an_error(allowed, said):
    with pytest.raises(UsageError) as caught:
        allowed_changes(_OLD, _OLD, allowed=[allowed], name="w")
    assert allowed in str(caught.value) and said in str(caught.value)
