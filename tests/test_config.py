"""Configs: typed overrides, JSON both ways, and impossible values."""

import dataclasses
import json
import re

import pytest

from bert_jax import config as configs
from bert_jax import config_loader
from bert_jax.config import ModelConfig, PhaseConfig, TrainConfig
from bert_jax.config_checks import complete, mask_warnings, validate
from bert_jax.errors import UsageError

_TWO_PHASES = TrainConfig(
    phases=(PhaseConfig(), PhaseConfig(sequence_length=512, steps=100_000, max_predictions=76))
)


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
        ('optimizer={"kind": "muon"}', ["optimizer.kind=muon"]),
    ],
)
def test_a_section_changes_only_the_named_options(section, single):
    first = ["model.hidden_size=48", "phases.1.learning_rate=1e-3", "optimizer.z_loss=1e-4"]
    found = config_loader.override(_TWO_PHASES, [*first, section])
    assert found == config_loader.override(_TWO_PHASES, [*first, *single])


@pytest.mark.parametrize(
    ("assignment", "path", "message"),
    [
        ("model.hiden_size=3", "model.hiden_size", "Did you mean 'hidden_size'?"),
        ("optimiser.learning_rate=1", "optimiser", "Did you mean 'optimizer'?"),
        ("steps=1", "steps", "Did you mean 'phases.0.steps' or 'phases.1.steps'?"),
        ("learning_rate=1", "learning_rate", "Did you mean 'optimizer.learning_rate'"),
        ("phases.0.seed=1", "phases.0.seed", "Did you mean 'seed'?"),
        ("sed=1", "sed", "Did you mean 'seed'?"),
        ("mesh.zzz=1", "mesh.zzz", "Fields here: slices, fsdp, tensor,"),
        ("model.hidden_size=big", "model.hidden_size", "expected int, got"),
        ("model.hidden_size=1.5", "model.hidden_size", "expected int, got"),
        ("model.hidden_size=true", "model.hidden_size", "expected int, got"),
        ("optimizer.learning_rate=null", "optimizer.learning_rate", "expected float, got"),
        ("compute.dtype=32", "compute.dtype", "one of bfloat16, float32"),
        ("model=3", "model", "expected a section of fields, got 3"),
        ("phases=3", "phases", "expected a list, got 3"),
        ("phases.0=3", "phases.0", "expected a section of fields, got 3"),
        ("phases.2.steps=3", "phases", "has items 0 to 1, not '2'"),
        ("phases.first.steps=3", "phases", "has items 0 to 1, not 'first'"),
        ('phases=[{"stepz": 3}]', "phases.0.stepz", "Did you mean 'steps'?"),
        ('phases=[{"changes": {}}]', "phases.0.changes", "no such field"),
        ("seed.x=3", "seed", "expected int, got"),
        ("seed", "seed", "write it as FIELD=VALUE"),
        ("phases.².steps=3", "phases", "has items 0 to 1, not '²'"),
        ("head.labels.0=x", "head.labels", "has no items, not '0'"),
        (f"seed={2**63}", "seed", "expected int <= 4294967295"),
        ("model.hidden_size=1e300", "model.hidden_size", "does not fit in 64 bits"),
        (f"optimizer.learning_rate=1{'0' * 400}", "optimizer.learning_rate", "out of range"),
        (f"seed=1{'0' * 5000}", "seed", "Exceeds the limit"),
        (f"seed={'[' * 100_000}", "seed", "nested too deeply"),
    ],
)
def test_a_wrong_override_names_the_option_and_the_fix(assignment, path, message):
    with pytest.raises(UsageError) as caught:
        config_loader.override(_TWO_PHASES, [assignment])
    assert str(caught.value).startswith(f"override {path}") and message in str(caught.value)
    assert caught.value.exit_code == 2


# --- JSON ----------------------------------------------------------------------------------------


def test_json_round_trip():
    values = json.loads(json.dumps(configs.to_dict(_TWO_PHASES)))
    assert configs.from_dict(values, TrainConfig) == _TWO_PHASES
    assert configs.from_dict({}, TrainConfig) == TrainConfig()
    flat = configs.flatten(_TWO_PHASES)
    assert flat["phases.1.sequence_length"] == 512 and flat["model.hidden_size"] == 768
    assert config_loader.override(TrainConfig(phases=_TWO_PHASES.phases), [
        f"{path}={json.dumps(value)}" for path, value in flat.items()
    ]) == _TWO_PHASES  # fmt: skip


def test_a_config_json_of_a_run_has_other_facts_as_well(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": configs.to_dict(_TWO_PHASES), "versions": {"jax": "1"}}))
    assert config_loader.load_config(str(path), ["seed=7"]) == dataclasses.replace(
        complete(_TWO_PHASES), seed=7
    )


def test_json_is_never_executed(tmp_path):
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
        ('{"seed": "one"}', "seed: expected int, got"),
        ("\xff", "is not JSON"),
        ("[" * 100_000, "is not JSON: nested too deeply"),
        ('{"seed": NaN}', "seed: expected int, got"),
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


@pytest.mark.parametrize("name", config_loader.shipped_names())
def test_shipped_configs_load(name):
    config = config_loader.load_config(name)
    assert config.name == name
    assert configs.from_dict(configs.to_dict(config), TrainConfig) == config
    assert not [*mask_warnings(config)]


def test_evaluations_of_vectors_take_at_most_a_tenth_of_the_time():
    """A held-out row costs at most half of a row of an update: no backward pass."""
    found = [config_loader.load_config(name) for name in config_loader.shipped_names()]
    for config in (config for config in found if config.objective == "contrastive"):
        rows = config.evaluation.every_steps * config.phases[0].global_batch_size
        assert config.evaluation.num_examples / 2 <= 0.1 * rows, config.name


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


def test_a_python_config_of_a_user(tmp_path):
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
        ("bert_bose", None, "Did you mean 'bert_base'? A config is a shipped name"),
        ("bert-base", None, "no config is named 'bert-base'. Did you mean 'bert_base'?"),
        ("empty.py", "", "must define a function: def config() -> TrainConfig"),
        ("wrong.py", "def config(): return 3", "config() returned int"),
    ],
)
def test_a_config_that_cannot_be_found_or_read(tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as caught:
        config_loader.load_config(str(path) if path.suffix else name)
    assert message in str(caught.value)


# --- checking ------------------------------------------------------------------------------------

_OUT_OF_LIMITS = [
    "data.short_seq_prob=1.5",
    f"seed={2**32}",
    "data.masked_lm_prob=0",
    "model.vocab_size=0",
    "model.hidden_act=relu",
    "compute.dtype=float16",
    "model.hidden_dropout_prob=1",
    "model.layer_norm_eps=0",
    "optimizer.beta2=-0.1",
    "optimizer.clip_norm=-1",
    "optimizer.learning_rate=Infinity",
    "model.initializer_range=NaN",
    "phases.0.sequence_length=7",
    "phases.1.steps=0",
    "evaluation.every_steps=-1",
]


@pytest.mark.parametrize("assignment", _OUT_OF_LIMITS)
def test_a_value_out_of_its_limits_is_an_error_in_a_file_too(assignment):
    path, _, value = assignment.partition("=")
    with pytest.raises(UsageError, match=rf"override {path}"):
        config_loader.override(_TWO_PHASES, [assignment])
    if re.fullmatch(r"-?[0-9.]+", value) and path.count(".") == 1:
        with pytest.raises(UsageError, match=path):
            validate(configs.replaced(TrainConfig(), {path: float(value)}))


_IMPOSSIBLE = [
    ("model.num_attention_heads=5", "model.num_attention_heads", "does not divide hidden_size 768"),
    ("model.type_vocab_size=1", "model.type_vocab_size", "rows of sentence_pairs need 2 segments"),
    ("data.sequence_format=documents", "data.sequence_format", "learns from sentence_pairs"),
    ("optimizer.schedule=warmup_stable_decay", "optimizer.schedule.decay_steps", "must be from"),
    ("optimizer.frozen_layers=99", "optimizer.frozen_layers", "is 99, but the model has"),
    ("optimizer.spike_factor=0.5", "optimizer.spike_factor", "0 or more than 1"),
    *(
        (f"{name}={value}", path, f"Did you mean {meant!r}?")
        for name, path, value, meant in (
            ("objective", "objective", "mlm-nsp", "mlm+nsp"),
            ("model.position_embedding_type", "model.position_embedding_type", "learnt", "learned"),
            ("model.mixer", "model.mixer.kind", "attentoin", "attention"),
            ("model.mixer.score", "model.mixer.score", "scaled_product", "scaled_dot_product"),
            ("compute.attention", "compute.attention", "fuse", "fused"),
            ("data.sequence_format", "data.sequence_format", "sentence-pairs", "sentence_pairs"),
            ("data.masking", "data.masking", "token", "tokens"),
            ("optimizer.schedule", "optimizer.schedule.kind", "bert_line", "bert_linear"),
        )
    ),
    ("data.random_token_prob=0.3", "data.random_token_prob", "together exceed 1"),
    ("optimizer.gradient_accumulation_steps=3", "phases.0.global_batch_size", "does not divide"),
    ("optimizer.warmup_steps=-1", "optimizer.warmup_steps", "the schedule has 1000000 steps"),
    ("optimizer.warmup_steps=1000000", "optimizer.warmup_steps", "warmup_steps=100000 (a tenth"),
    ("phases=[]", "phases", "at least one phase"),
    ("phases.1.sequence_length=513", "phases.1.sequence_length", "longer than the position table"),
    ("phases.0.max_predictions=0", "phases.0.max_predictions", "the usual value is 19"),
    ("phases.0.max_predictions=126", "phases.0.max_predictions", "must be 1 to 125"),
    ("phases.1.masked_lm_prob=1.5", "phases.1.masked_lm_prob", "at most 1, or -1 for data."),
    ("phases.1.masked_lm_prob=0", "phases.1.masked_lm_prob", "at most 1, or -1 for data."),
    ("mesh.tensor=5", "mesh.tensor", "does not divide num_attention_heads 12"),
    ("mesh.fsdp=0", "mesh.fsdp", "-1 (all devices)"),
    ("model.rope_theta=2", "model.rope_theta", "with position_embedding_type rotary or"),
    ("model.first_norm=false", "model.first_norm", "with norm_placement pre only"),
    ("model.generator_size=0.5", "model.generator_size", "objective rtd"),
]


@pytest.mark.parametrize("assignment, path, message", _IMPOSSIBLE, ids=[i[0] for i in _IMPOSSIBLE])
def test_an_impossible_value_is_named(assignment, path, message):
    config = config_loader.override(_TWO_PHASES, [assignment])
    with pytest.raises(UsageError) as caught:
        validate(config)
    start = str(caught.value).removeprefix("config 'unnamed': ")
    assert start.startswith(path + " ")
    assert message in start


@pytest.mark.parametrize("steps", [1, 2, 3, 30, 90, 101, 150, 420])
def test_the_fixes_for_a_schedule_that_is_too_long_fit(steps):
    """The shipped config whose warm-up and decay are longest, cut short: each remedy once."""
    config = config_loader.load_config("modern_small_cpu")
    config = config_loader.override(config, [f"phases.0.steps={steps}"])
    asked: list[str] = []
    while True:
        try:
            validate(config)
            break
        except UsageError as error:
            remedies = re.findall(r"set (optimizer\.[\w.]+=\d+)", str(error))
        assert remedies and not {*remedies} & {*asked}
        asked += remedies
        config = config_loader.override(config, remedies)
    assert len(asked) <= 2
    if steps == 150:
        assert asked == ["optimizer.warmup_steps=15", "optimizer.schedule.decay_steps=50"]


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (("attention_window=16", "first_global_layer=2"), "global_attention_every_n_layers only"),
        (("masked_lm_inner_size=12", "masked_lm_transform=false"), "masked_lm_transform only"),
    ],
)
def test_a_field_without_effect_is_rejected(assignments, message):
    with pytest.raises(UsageError, match=message):
        validate(config_loader.override(_TWO_PHASES, [f"model.{each}" for each in assignments]))


def test_an_option_without_effect_on_the_rows_is_rejected():
    config = config_loader.override(
        _TWO_PHASES, ["objective=mlm", "data.sequence_format=full_sentences"]
    )
    one_segment = config_loader.override(config, ["model.type_vocab_size=1"])
    assert validate(one_segment) is one_segment
    with pytest.raises(
        UsageError, match=r"short_seq_prob is 0\.0.*sequence_format sentence_pairs only"
    ):
        validate(config_loader.override(config, ["data.short_seq_prob=0"]))


def test_a_generator_of_another_width_needs_the_masked_lm_transform():
    config = config_loader.override(
        _TWO_PHASES,
        ["objective=rtd", "data.sequence_format=full_sentences", "model.masked_lm_transform=false"],
    )
    with pytest.raises(UsageError, match=r"model\.masked_lm_transform.*model\.generator_size"):
        validate(complete(config))
    config = config_loader.override(config, ["model.generator_size=1"])
    assert validate(complete(config)).model.generator().hidden_size == 768


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
def test_values_at_their_limits_are_accepted(assignment):
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


def test_a_warning_names_the_room_that_the_mask_rate_needs():
    phases = (
        PhaseConfig(sequence_length=64, max_predictions=10),
        PhaseConfig(sequence_length=512, max_predictions=76),
    )
    config = TrainConfig(phases=phases)
    assert not [*mask_warnings(config)]  # as published
    more = config_loader.override(config, ["data.masked_lm_prob=0.4"])
    first, second = mask_warnings(more)
    assert "phases.0.max_predictions is 10: a full row of 64 has 15.6 % of its" in first
    assert "not 40 %" in first and "set phases.1.max_predictions=205" in second
    said = [line.partition("; set ")[2] for line in (first, second)]
    assert not [*mask_warnings(config_loader.override(more, said))]
    (line,) = mask_warnings(config_loader.override(config, ["phases.1.masked_lm_prob=0.4"]))
    assert "set phases.1.max_predictions=205" in line
    # Fine-tuning masks no tokens.
    assert not [*mask_warnings(config_loader.override(more, ['head.parts=["pooler"]']))]
