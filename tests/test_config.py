"""Configs: typed overrides, JSON both ways, and every way in which one can be impossible."""

import dataclasses
import json
import re

import pytest

from bert_jax import config as configs
from bert_jax import config_loader
from bert_jax.config import ModelConfig, PhaseConfig, TrainConfig, field_names
from bert_jax.config.fields import section, setting
from bert_jax.config_checks import complete, mask_warnings, validate
from bert_jax.errors import UsageError

_TWO_PHASES = TrainConfig(
    phases=(PhaseConfig(), PhaseConfig(sequence_length=512, steps=100_000, max_predictions=76))
)


# --- what a field says about itself --------------------------------------------------------------


def test_a_field_that_says_nothing_about_itself_is_refused():
    """As the package is imported: so each is documented and classified."""
    with pytest.raises(TypeError, match=r"Section\.size says nothing about itself: use setting"):

        @section
        class Section:
            size: int = 3

    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        setting(3)  # type: ignore[call-arg]


def test_every_leaf_of_a_config_is_a_field_that_says_which_rule_it_has():
    for path, value in configs.flatten(_TWO_PHASES).items():
        described = configs.setting_of(path)
        assert described and described.doc.endswith("."), path
        assert described.rule.on_resume in ("free", "flag", "refused")
        assert described.rule.compared in ("free", "judged", "equal")
        assert type(value) is str or not [*described.problems(value)], path
    assert configs.setting_of("phases.7.steps") is configs.settings()["phases.N.steps"]
    assert configs.setting_of("head.parts.1") is configs.settings()["head.parts"]
    assert configs.setting_of("model") is configs.setting_of("corpus") is None


# --- overrides -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "assignment, read, expected",
    [
        ("model.hidden_size=256", lambda c: c.model.hidden_size, 256),
        ("optimizer.learning_rate=3e-4", lambda c: c.optimizer.learning_rate, 3e-4),
        ("optimizer.weight_decay=0", lambda c: c.optimizer.weight_decay, 0.0),
        ("optimizer.bias_correction=true", lambda c: c.optimizer.bias_correction, True),
        ("compute.dtype=float32", lambda c: c.compute.dtype, "float32"),
        ('name="a b"', lambda c: c.name, "a b"),
        ("phases.1.steps=1e6", lambda c: c.phases[1].steps, 1_000_000),
        ('phases=[{"steps": 7}]', lambda c: c.phases, (PhaseConfig(steps=7),)),
        ('mesh={"fsdp": 4}', lambda c: c.mesh, configs.MeshConfig(fsdp=4)),
    ],
)
def test_an_override_has_the_type_of_its_field(assignment, read, expected):
    value = read(config_loader.override(_TWO_PHASES, [assignment]))
    assert value == expected
    assert type(value) is type(expected)


def test_an_override_changes_nothing_else_and_the_last_one_wins():
    changed = config_loader.override(
        _TWO_PHASES, ["phases.0.steps=5", "seed=3", "phases.0.steps=6"]
    )
    first, second = _TWO_PHASES.phases
    assert changed == dataclasses.replace(
        _TWO_PHASES, seed=3, phases=(dataclasses.replace(first, steps=6), second)
    )


@pytest.mark.parametrize(
    ("section", "single"),
    [
        ('model={"num_hidden_layers": 3}', ["model.num_hidden_layers=3"]),
        ("model={}", []),
        ('phases.1={"steps": 3}', ["phases.1.steps=3"]),
        ('optimizer={"kind": "muon", "momentum": 0.9}', ["optimizer.kind=muon"]),
        (
            'phases.1={"optimizer": {"learning_rate": 1e-3}}',
            ["phases.1.optimizer.learning_rate=1e-3"],
        ),
    ],
)
def test_of_a_section_only_the_fields_change_that_are_named(section, single):
    first = ["model.hidden_size=48", "phases.1.optimizer.beta1=0.8", "optimizer.z_loss=1e-4"]
    found = config_loader.override(_TWO_PHASES, [*first, section])
    more = ["optimizer.momentum=0.9"] if "muon" in section else []
    assert found == config_loader.override(_TWO_PHASES, [*first, *single, *more])


@pytest.mark.parametrize(
    "assignment, message",
    [
        ("model.hiden_size=3", "no field 'hiden_size'. Did you mean 'hidden_size'?"),
        ("optimiser.learning_rate=1", "no field 'optimiser'. Did you mean 'optimizer.learning_"),
        ("steps=1", "no field 'steps'. Did you mean 'phases.0.steps' or 'phases.1.steps'?"),
        ("learning_rate=1", "no field 'learning_rate'. Did you mean 'optimizer.learning_rate'?"),
        ("batch_size=8", "Did you mean 'phases.0.global_batch_size' or 'phases.1.global"),
        ("seq-len=8", "Did you mean 'phases.0.sequence_length' or"),
        ("model.layers=2", "Did you mean 'model.num_hidden_layers' or 'compute.layers'?"),
        ("warmup_step=2", "Did you mean 'optimizer.warmup_steps'?"),
        ("epochs=2", "A run counts updates, not epochs: phases.0.steps."),
        ("optimizer=adamw", "a section of fields, got 'adamw'. Did you mean 'optimizer.kind'?"),
        (
            "compute.dropout_hash=murmur",
            "'dropout_hash'. Did you mean 'dropout_hash', which is in no",
        ),
        ("phases.0.seed=1", "Did you mean 'seed', which is in no section?"),
        ("sed=1", "no field 'sed'. Did you mean 'seed'?"),
        ("mesh.zzz=1", "no field 'zzz'. Fields here: slices, fsdp, tensor,"),
        ("model.hidden_size=big", "model.hidden_size: expected int, got 'big'"),
        ("model.hidden_size=1.5", "model.hidden_size: expected int, got 1.5"),
        ("model.hidden_size=true", "model.hidden_size: expected int, got True"),
        ("optimizer.bias_correction=1", "optimizer.bias_correction: expected bool, got 1"),
        ("optimizer.learning_rate=null", "optimizer.learning_rate: expected float, got None"),
        ("compute.dtype=32", "compute.dtype: expected str, got 32"),
        ("model=3", "model: expected a section of fields, got 3"),
        ("phases=3", "phases: expected a list, got 3"),
        ("phases.0=3", "phases.0: expected a section of fields, got 3"),
        ("phases.2.steps=3", "phases has entries 0 to 1, not '2'"),
        ("phases.first.steps=3", "phases has entries 0 to 1, not 'first'"),
        ('phases=[{"stepz": 3}]', "phases.0.stepz: no such field. Did you mean 'steps'?"),
        (
            'phases=[{"changes": {}}]',
            "phases.0.changes: no such field. Fields here: sequence_length, "
            "steps, global_batch_size, max_predictions, masked_lm_prob, max_sequences, model, "
            "data, optimizer.",
        ),
        ('phases=[{"sections": {}}]', "phases.0.sections: no such field."),
        ("seed.x=3", "seed is a value, not a section"),
        ("seed", "write it as section.field=value"),
        ("phases.².steps=3", "phases has entries 0 to 1, not '²'"),
        ("head.labels.0=x", "head.labels has no entries, not '0'"),
        (f"seed={2**63}", "seed: 9223372036854775808 does not fit in 64 bits"),
        ("model.hidden_size=1e300", "does not fit in 64 bits"),
        (f"optimizer.learning_rate=1{'0' * 400}", "does not fit in 64 bits"),
        (f"seed=1{'0' * 5000}", "override seed: Exceeds the limit"),
        (f"seed={'[' * 100_000}", "override seed: nested too deeply"),
        ('mesh={"fsdp": 1, "fsdp": 2}', "override mesh: the key 'fsdp' occurs twice in an object"),
    ],
)
def test_a_wrong_override_is_explained(assignment, message):
    with pytest.raises(UsageError) as caught:
        config_loader.override(_TWO_PHASES, [assignment])
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


# --- JSON ----------------------------------------------------------------------------------------


def test_json_round_trip():
    values = json.loads(json.dumps(configs.to_dict(_TWO_PHASES)))
    assert configs.from_dict(values) == _TWO_PHASES
    assert configs.from_dict({}) == TrainConfig()
    flat = configs.flatten(_TWO_PHASES)
    assert flat["phases.1.sequence_length"] == 512 and flat["model.hidden_size"] == 768
    assert config_loader.override(TrainConfig(phases=_TWO_PHASES.phases), [
        f"{path}={json.dumps(value)}" for path, value in flat.items()
    ]) == _TWO_PHASES  # fmt: skip


def test_a_runs_config_json_is_parsed_with_what_lies_beside_it(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": configs.to_dict(_TWO_PHASES), "versions": {"jax": "1"}}))
    assert config_loader.load_config(str(path), ["seed=7"]) == dataclasses.replace(
        complete(_TWO_PHASES), seed=7
    )


def test_json_is_never_executed(tmp_path):
    """Python in a .json file is a wrong file, whatever it would do."""
    path, proof = tmp_path / "config.json", tmp_path / "executed"
    path.write_text(f"open({str(proof)!r}, 'w').close()\ndef config(): ...\n")
    with pytest.raises(UsageError, match=r"config\.json is not JSON"):
        config_loader.load_config(str(path))
    assert not proof.exists()


@pytest.mark.parametrize(
    "text, message",
    [
        ("[1, 2]", "the config: expected a section of fields, got [1, 2]"),
        ('{"config": 3}', "the config: expected a section of fields, got 3"),
        ('{"modle": {}}', "modle: no such field. Did you mean 'model'?"),
        ('{"seed": "one"}', "seed: expected int, got 'one'"),
        ("\xff", "is not JSON"),
        ("[" * 100_000, "is not JSON: nested too deeply"),
        ('{"seed": 1, "seed": 2}', "is not JSON: the key 'seed' occurs twice in an object"),
        ('{"seed": NaN}', "seed: expected int, got nan"),
        ('{"name": "\\ud800"}', r"name is '\ud800', which has half a surrogate pair"),
        ('{"a\\nb": 1}', r"a\nb: no such field"),
    ],
)
def test_json_that_is_no_config(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        config_loader.load_config(str(path))
    assert message in str(caught.value)
    assert "config" in str(caught.value) and "\n" not in str(caught.value)


# --- look-up -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["tiny_docs_cpu", "bert_small_cpu", "bert_base", "bert_large", "roberta_base"]
)
def test_shipped_configs_load(name):
    assert name in config_loader.shipped_names()
    config = config_loader.load_config(name)
    assert config.name == name
    assert configs.from_dict(configs.to_dict(config)) == config


def test_every_shipped_config_is_valid():
    for name in config_loader.shipped_names():
        config_loader.load_config(name)


def test_base_and_large_are_the_published_recipe():
    base, large = config_loader.load_config("bert_base"), config_loader.load_config("bert_large")
    assert base.model == ModelConfig()
    assert (large.model.hidden_size, large.model.num_hidden_layers) == (1024, 24)
    for config in (base, large):
        assert config.total_steps == 1_000_000
        assert [(p.sequence_length, p.steps, p.max_predictions) for p in config.phases] == [
            (128, 900_000, 20),
            (512, 100_000, 76),
        ]
        assert {p.global_batch_size for p in config.phases} == {256}
        assert (config.optimizer.learning_rate, config.optimizer.warmup_steps) == (1e-4, 10_000)


def test_a_python_config_is_the_users_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from bert_jax.config import TrainConfig\n"
        "def config():\n    return TrainConfig(name='mine', seed=4)\n"
    )
    assert config_loader.load_config(str(path), ["seed=5"]) == complete(
        TrainConfig(name="mine", seed=5)
    )


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("missing.py", None, "No such file"),
        ("missing.json", None, "No such file"),
        ("bert_bose", None, "Did you mean 'bert_base'? A config is a shipped name ('bert-jax show"),
        (
            "bert-base",
            None,
            "no config 'bert-base'. Did you mean 'bert_base'? A config is",
        ),
        ("empty.py", "", "must define a function: def config() -> TrainConfig"),
        ("wrong.py", "def config(): return 3", "config() returned int"),
    ],
)
def test_a_name_that_leads_nowhere(tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as caught:
        config_loader.load_config(str(path) if path.suffix else name)
    assert message in str(caught.value)


# --- checking ------------------------------------------------------------------------------------

_IMPOSSIBLE = [
    ("optimizer.learning_rate=Infinity", "optimizer.learning_rate", "must be finite"),
    ("model.initializer_range=NaN", "model.initializer_range", "must be finite"),
    ("data.short_seq_prob=1.5", "data.short_seq_prob", "at most 1"),
    (f"seed={2**32}", "seed", "at most 4294967295"),
    ("data.masked_lm_prob=0", "data.masked_lm_prob", "must be positive"),
    *(
        (f"model.{name}=0", f"model.{name}", "at least 1")
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
        )
    ),
    ("model.num_attention_heads=5", "model.num_attention_heads", "does not divide hidden_size 768"),
    ("model.type_vocab_size=1", "model.type_vocab_size", "rows of sentence_pairs need 2 segments"),
    ("data.rows=documents", "data.rows", "objective mlm+nsp learns from sentence_pairs: choose"),
    ("model.hidden_act=relu", "model.hidden_act", "choose one of gelu, gelu_new"),
    ("compute.dtype=float16", "compute.dtype", "choose one of bfloat16, float32"),
    ("compute.remat=some", "compute.remat", "choose one of none, full, dots"),
    ("compute.layers=loop", "compute.layers", "choose one of unroll, scan"),
    ("model.hidden_dropout_prob=1", "model.hidden_dropout_prob", "below 1"),
    ("model.attention_probs_dropout_prob=1", "model.attention_probs_dropout_prob", "below 1"),
    ("model.layer_norm_eps=0", "model.layer_norm_eps", "must be positive"),
    ("optimizer.beta1=1", "optimizer.beta1", "below 1"),
    ("optimizer.beta2=-0.1", "optimizer.beta2", "at least 0"),
    ("optimizer.clip_norm=-1", "optimizer.clip_norm", "0 switches it off"),
    ("optimizer.schedule=warmup_stable_decay", "optimizer.decay_steps", "may be the decay's"),
    ("optimizer.frozen_layers=99", "optimizer.frozen_layers", "is 99, and the model has"),
    ("optimizer.spike_factor=0.5", "optimizer.spike_factor", "0 or more than 1"),
    ("optimizer.max_skipped_updates=-1", "optimizer.max_skipped_updates", "at least 0"),
    *(
        (f"{name}={value}", name, f"Did you mean {meant!r}?")
        for name, value, meant in (
            ("objective", "mlm-nsp", "mlm+nsp"),
            ("model.position_embedding_type", "learnt", "learned"),
            ("compute.attention", "fuse", "fused"),
            ("data.rows", "sentence-pairs", "sentence_pairs"),
            ("data.mask", "token", "tokens"),
            ("optimizer.kind", "bert_adam", "bert_adamw"),
            ("optimizer.schedule", "bert_line", "bert_linear"),
        )
    ),
    ("data.random_token_prob=0.3", "data.random_token_prob", "together exceed 1"),
    ("data.num_workers=0", "data.num_workers", "at least 1"),
    ("data.prefetch=0", "data.prefetch", "at least 1"),
    ("optimizer.learning_rate=0", "optimizer.learning_rate", "must be positive"),
    (
        "optimizer.gradient_accumulation_steps=0",
        "optimizer.gradient_accumulation_steps",
        "at least 1",
    ),
    (
        "optimizer.gradient_accumulation_steps=3",
        "phases.0.global_batch_size",
        "gradient_accumulation_steps = 3 does not divide",
    ),
    ("optimizer.warmup_steps=-1", "optimizer.warmup_steps", "the run has 1000000 steps"),
    ("optimizer.warmup_steps=1000000", "optimizer.warmup_steps", "warmup_steps=100000 is a tenth"),
    ("phases=[]", "phases", "at least one phase"),
    ("phases.1.steps=0", "phases.1.steps", "at least 1"),
    ("phases.1.global_batch_size=0", "phases.1.global_batch_size", "at least 1"),
    ("phases.0.sequence_length=7", "phases.0.sequence_length", "at least 8"),
    ("phases.1.sequence_length=513", "phases.1.sequence_length", "longer than the position table"),
    ("phases.0.max_predictions=0", "phases.0.max_predictions", "the usual value is 19"),
    ("phases.0.max_predictions=126", "phases.0.max_predictions", "has 125 tokens to choose from"),
    ("phases.1.masked_lm_prob=1.5", "phases.1.masked_lm_prob", "at most 1, or -1 for data."),
    ("phases.1.masked_lm_prob=0", "phases.1.masked_lm_prob", "at most 1, or -1 for data."),
    ("evaluation.num_examples=0", "evaluation.num_examples", "at least 1"),
    ("evaluation.batch_size=0", "evaluation.batch_size", "at least 1"),
    ("evaluation.every_steps=-1", "evaluation.every_steps", "at least 0"),
    ("checkpoint.every_steps=0", "checkpoint.every_steps", "at least 1"),
    ("checkpoint.keep_last=0", "checkpoint.keep_last", "at least 1"),
    ("checkpoint.keep_every=-1", "checkpoint.keep_every", "at least 0"),
    ("checkpoint.max_failed_saves=-1", "checkpoint.max_failed_saves", "at least 0"),
    ("deadline_seconds=0", "deadline_seconds", "must be positive"),
    ("log_every_steps=0", "log_every_steps", "at least 1"),
    ("mesh.tensor=5", "mesh.tensor", "does not divide num_attention_heads 12"),
    ("mesh.tensor=0", "mesh.tensor", "at least 1"),
    ("mesh.slices=0", "mesh.slices", "at least 1"),
    ("compute.gather=never", "compute.gather", "per_step, per_layer"),
    ("mesh.fsdp=0", "mesh.fsdp", "-1 (all devices)"),
]


@pytest.mark.parametrize("assignment, path, message", _IMPOSSIBLE, ids=[i[0] for i in _IMPOSSIBLE])
def test_the_impossible_is_refused_by_name(assignment, path, message):
    config = config_loader.override(_TWO_PHASES, [assignment])
    with pytest.raises(UsageError) as caught:
        validate(config)
    start = str(caught.value).removeprefix("config 'unnamed': ")
    assert start.startswith(path + " ")
    assert message in start


@pytest.mark.parametrize("steps", [1, 2, 3, 30, 90, 101, 150, 420])
def test_the_remedies_of_a_schedule_that_is_too_long_end_in_one_that_fits(steps):
    """The shipped config whose warm-up and decay are longest, cut short: each remedy once."""
    config = config_loader.load_config("modern_small_cpu")
    config = config_loader.override(config, [f"phases.0.steps={steps}"])
    asked: list[str] = []
    while True:
        try:
            validate(config)
            break
        except UsageError as error:
            remedies = re.findall(r"set (optimizer\.\w+=\d+)", str(error))
        assert remedies and not {*remedies} & {*asked}
        asked += remedies
        config = config_loader.override(config, remedies)
    assert len(asked) <= 2
    if steps == 150:
        assert asked == ["optimizer.warmup_steps=15", "optimizer.decay_steps=50"]


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (("attention_window=16", "first_global_layer=2"), "but no layer is global"),
        (
            ("masked_lm_inner_size=12", "masked_lm_transform=false"),
            "only a head with a transform reads",
        ),
    ],
)
def test_a_field_that_another_one_makes_idle_is_refused(assignments, message):
    with pytest.raises(UsageError, match=message):
        validate(config_loader.override(_TWO_PHASES, [f"model.{each}" for each in assignments]))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("data.short_seq_prob=0", "which rows full_sentences does not read: only sentence_pairs"),
        ("data.random_next_prob=0", "which rows full_sentences does not read: only sentence_pairs"),
    ],
)
def test_what_other_rows_do_not_read_is_refused(assignment, message):
    config = config_loader.override(_TWO_PHASES, ["objective=mlm", "data.rows=full_sentences"])
    one_segment = config_loader.override(config, ["model.type_vocab_size=1"])
    assert validate(one_segment) is one_segment
    with pytest.raises(UsageError, match=f"{assignment[:-2]} is 0.0, {message}"):
        validate(config_loader.override(config, [assignment]))


@pytest.mark.parametrize(
    "assignment",
    [
        "phases.0.max_predictions=125",
        "phases.1.sequence_length=8",
        "optimizer.warmup_steps=0",
        "optimizer.warmup_steps=999999",
        "data.masked_lm_prob=1",
        "data.random_token_prob=0.2",
        "evaluation.every_steps=0",
        "mesh.fsdp=1",
    ],
)
def test_the_edge_of_the_possible_is_accepted(assignment):
    phases = (PhaseConfig(), PhaseConfig(steps=100_000, sequence_length=512, max_predictions=5))
    config = config_loader.override(TrainConfig(phases=phases), [assignment])
    assert validate(config) is config


@pytest.mark.parametrize(
    ("length", "rate", "expected"),
    [(128, 0.15, 20), (512, 0.15, 77), (64, 0.4, 26), (20, 0.15, 3), (16, 0.01, 1), (16, 1, 13)],
)
def test_the_number_of_predictions_follows_the_mask_rate(length, rate, expected):
    config = config_loader.override(
        TrainConfig(), [f"phases.0.sequence_length={length}", f"data.masked_lm_prob={rate}"]
    )
    assert validate(complete(config)).phases[0].max_predictions == expected
    set_by_hand = config_loader.override(config, ["phases.0.max_predictions=7"])
    assert complete(set_by_hand).phases[0].max_predictions == 7
    by_phase = config_loader.override(
        TrainConfig(), [f"phases.0.sequence_length={length}", f"phases.0.masked_lm_prob={rate}"]
    )
    assert validate(complete(by_phase)).phases[0].max_predictions == expected


def test_too_little_room_for_the_mask_rate_is_said_with_what_would_do():
    phases = (
        PhaseConfig(sequence_length=64, max_predictions=10),
        PhaseConfig(sequence_length=512, max_predictions=76),
    )
    config = TrainConfig(phases=phases)
    assert not [*mask_warnings(config)]  # as published
    more = config_loader.override(config, ["data.masked_lm_prob=0.4"])
    first, second = mask_warnings(more)
    assert "phases.0.max_predictions is 10, so that a full row of 64 has 15.6 % of its" in first
    assert "not 40 % (data.masked_lm_prob); set phases.0.max_predictions=26" in first
    assert "set phases.1.max_predictions=205" in second
    said = [line.partition("; set ")[2] for line in (first, second)]
    assert not [*mask_warnings(config_loader.override(more, said))]
    one = config_loader.override(config, ["phases.1.masked_lm_prob=0.4"])
    (line,) = mask_warnings(one)
    assert "not 40 % (phases.1.masked_lm_prob); set phases.1.max_predictions=205" in line
    # A fine-tuned model masks nothing.
    assert not [*mask_warnings(config_loader.override(more, ['head.parts=["pooler"]']))]


@pytest.mark.parametrize("name", config_loader.shipped_names())
def test_no_shipped_config_masks_less_than_its_rate(name):
    assert not [*mask_warnings(config_loader.load_config(name))]


def test_what_people_call_a_field_is_a_field():
    """Each name leads to one field first, which no other one shares."""
    paths = list(configs.flatten(TrainConfig()))
    for path in paths:
        for name in configs.setting_of(path).called:
            assert field_names.meant(name, paths)[0] == path, name
            assert name in field_names.synonyms(path)
