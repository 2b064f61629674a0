"""Which steps are saved: by steps, by minutes, steps to keep, and the ends of phases."""

from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.config import CheckpointConfig, PhaseConfig
from bert_jax.training.saving import Saver
from bert_jax.workdir import location
from tests import tiny_corpus


@pytest.mark.parametrize(
    ("settings", "saved"),
    [
        ({"every_steps": 9}, [9, 18, 27, 35, 36, 40]),
        # Ten minutes of ten-second steps are 60 steps; the next step with a row of the log is 65.
        ({"every_minutes": 10.0}, [35, 40, 100]),
        ({"every_minutes": 10.0, "keep_every": 25}, [25, 35, 40, 50, 75, 100]),
        ({"every_steps": 30, "kept": {7, 38}}, [7, 30, 35, 38, 40]),
        ({"every_minutes": 10.0, "kept": {7}}, [7, 35, 40]),
    ],
    ids=str,
)
def test_steps_that_are_saved(tmp_path, settings, saved):
    kept = settings.get("kept", ())
    settings = {name: value for name, value in settings.items() if name != "kept"}
    steps = max(*saved, 40)
    phases = (
        PhaseConfig(sequence_length=32, steps=35, global_batch_size=8),
        PhaseConfig(sequence_length=32, steps=5, global_batch_size=8),
    )
    if steps > 40:
        phases += (PhaseConfig(sequence_length=32, steps=1000, global_batch_size=8),)
    config = tiny_corpus.tiny_config(
        phases=phases, checkpoint=CheckpointConfig(**settings), log_every_steps=5
    )
    now: Any = SimpleNamespace(seconds=0.0)
    saver = Saver(
        location.at(tmp_path), config, logger=now, watchdog=now, saved_step=0, kept=kept,
        clock=lambda: now.seconds,
    )  # fmt: skip
    found = []
    for step in range(1, steps + 1):
        now.seconds += 10.0
        found += [step] if saver.is_due(step) else []
    assert found == saved
