"""Every field of a config: free on resumption, free if asked for, or refused; before compiling."""

import shutil

import pytest

from bert_jax import config as configs
from bert_jax.data.corpus.store import open_corpus
from bert_jax.errors import ResumeRefused, UsageError
from bert_jax.workdir import checkpoint, run_directory
from tests.chaos import long_form
from tests.chaos.runs import CONFIG, Started, lines

pytestmark = pytest.mark.chaos

# field -> (another value, what becomes of it)
_CHANGES = {
    "name": ("other", "free"),
    "seed": (1, "flag"),
    "log_every_steps": (2, "free"),
    "deadline_seconds": (100.0, "free"),
    "output_bias": ("log_frequency", "flag"),
    "model.hidden_size": (64, "fixed"),
    "model.num_hidden_layers": (3, "fixed"),
    "model.num_attention_heads": (2, "fixed"),
    "model.intermediate_size": (128, "fixed"),
    "model.vocab_size": (250, "fixed"),
    "model.max_position_embeddings": (64, "fixed"),
    "model.hidden_act": ("gelu", "fixed"),
    "model.hidden_dropout_prob": (0.2, "flag"),
    "model.attention_probs_dropout_prob": (0.2, "flag"),
    "compute.dtype": ("bfloat16", "flag"),
    "compute.remat": ("full", "free"),
    "compute.layers": ("scan", "free"),
    "compute.gather": ("per_layer", "free"),
    "compute.loss_slices": (4, "free"),
    "data.masked_lm_prob": (0.2, "flag"),
    "data.short_seq_prob": (0.2, "flag"),
    "data.rows": ("documents", "flag"),
    "data.num_workers": (1, "free"),
    "data.prefetch": (2, "free"),
    "optimizer.learning_rate": (1e-3, "flag"),
    "optimizer.warmup_steps": (5, "flag"),
    "optimizer.weight_decay": (0.1, "flag"),
    "optimizer.clip_norm": (0.5, "flag"),
    "optimizer.frozen_layers": (1, "flag"),
    "optimizer.spike_factor": (4.0, "flag"),
    "optimizer.max_skipped_updates": (5, "free"),
    "optimizer.z_loss": (1e-4, "flag"),
    "phases.1.steps": (20, "flag"),
    "phases.1.global_batch_size": (16, "flag"),
    "phases.1.masked_lm_prob": (0.3, "flag"),
    "mesh.shard_weights": (False, "free"),
    "evaluation.every_steps": (4, "free"),
    "evaluation.num_examples": (10, "free"),
    "checkpoint.every_steps": (5, "free"),
    "checkpoint.keep_last": (1, "free"),
    "checkpoint.max_failed_saves": (0, "free"),
}


def _changed(field: str, value):
    values = configs.to_dict(CONFIG)
    here = values
    *parents, last = field.split(".")
    for name in parents:
        here = here[int(name)] if isinstance(here, list) else here[name]
    assert here[last] != value
    here[last] = value
    return configs.from_dict(values)


@pytest.mark.parametrize("field", _CHANGES)
def test_each_field(finished, corpus, field):
    value, expected = _CHANGES[field]
    config, tokens = _changed(field, value), open_corpus(corpus)

    def ask(*allowed: str):
        return run_directory.holds_run(finished, config, tokens, init_from=None, allowed=allowed)

    if expected == "free":
        assert ask() == (True, [])
        with pytest.raises(UsageError, match="may change without it"):
            ask(field)
        return
    old = configs.flatten(CONFIG)[field]
    with pytest.raises(ResumeRefused) as refused:
        ask()
    assert f"{field}: {old!r} -> {value!r}" in str(refused.value)
    if expected == "fixed":
        assert "allow_change" not in str(refused.value)
        with pytest.raises(ResumeRefused):
            ask(field)
        return
    assert f"`allow_change` {field}" in str(refused.value)
    assert ask(field) == (True, [(field, old, value)])


@long_form
def test_by_the_command_line(tmp_path, finished, corpus):
    """Refused with 3 before anything is compiled; with the flag, the longer run goes on."""
    shutil.copytree(finished, tmp_path / "run" / "workdir")
    longer = _changed("phases.1.steps", 20)
    refused = Started(tmp_path / "run", corpus, config=longer)
    assert refused.finish() == [3], refused.log()
    assert "phases.1.steps: 16 -> 20" in refused.log() and "compiling" not in refused.log()
    options = ["--allow-change", "phases.1.steps"]
    allowed = Started(tmp_path / "run", corpus, config=longer, options=options)
    assert allowed.finish() == [0], allowed.log()
    events = lines(allowed.workdir / "events.jsonl")
    (change,) = [event for event in events if event["event"] == "change"]
    assert change["fields"] == [["phases.1.steps", 16, 20]]
    assert max(checkpoint.steps(allowed.workdir)) == 44
    # The config of the workdir is the new one now: the flag may stay or go.
    again = Started(tmp_path / "run", corpus, config=longer)
    assert again.finish() == [0], again.log()
