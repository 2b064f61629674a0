"""Workdirs that hold only the logs of a run, written in a moment: for what reads logs."""

import json
import math
import random
from pathlib import Path
from typing import Any

from bert_jax import config as configs
from bert_jax.config import OptimizerConfig, PhaseConfig, TrainConfig
from tests.tiny_corpus import tiny_config

_VERSIONS = {"python": "3.11.7", "bert-jax": "0.1.0", "jax": "0.10.2"}
_STEPS = 200


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_config(directory: Path, config: TrainConfig | None = None, **facts: Any) -> Path:
    """Writes a workdir that has a config and nothing else: a run that has not begun."""
    directory.mkdir(parents=True, exist_ok=True)
    corpus = {
        "directory": "/somebody/corpus",
        "fingerprint": "0123456789abcdef",
        "tokenizer_hash": "fedcba9876543210",
        "sources": ["stories.txt"],
        "unigram_entropy_nats": 3.75,
        "train": {"documents": 48, "tokens": 5000},
        "validation": {"documents": 12, "tokens": 1200},
    }
    stored = {
        "config": configs.to_dict(config or tiny_config()),
        "versions": _VERSIONS,
        "corpus": corpus,
        "init_from": "/somebody/runs/earlier",
    }
    (directory / "config.json").write_text(json.dumps(stored | facts))
    return directory


def write_run(directory: Path, *, seed: int = 0, rate: float = 5e-3, rows_a_step: int = 1) -> Path:
    """Writes a run of 200 steps in two processes.

    The first is killed at step 120, twenty steps after its last checkpoint; the second goes on from
    there, leaves out the updates 150 and 151, and finishes. `rows_a_step` is how many rows there
    are for each step: more than one makes a long log.
    """
    write_config(
        directory, tiny_config(optimizer=OptimizerConfig(learning_rate=rate, warmup_steps=10))
    )
    draw = random.Random(seed)
    number = _STEPS * rows_a_step

    def row(step: int, time: float) -> dict[str, Any]:
        share = step / number
        loss = 2.0 + 3.5 * math.exp(-6 * share * rate / 5e-3) + draw.gauss(0, 0.05)
        missing = step in (150 * rows_a_step, 151 * rows_a_step)
        return {
            "step": step,
            "loss": None if missing else loss + 0.69,
            "mlm_loss": None if missing else loss,
            "mlm_accuracy": None if missing else 0.6 * share,
            "nsp_loss": None if missing else 0.69,
            "nsp_accuracy": None if missing else 0.5,
            "grad_norm": None if missing else 1 + draw.random(),
            "learning_rate": rate * min(10 * share, 1 - share),
            "tokens_per_second": 5000 + draw.gauss(0, 100),
            "step_seconds": 0.1,
            "mfu": 0.3 + draw.gauss(0, 0.01),
            "data_wait_seconds": 0.002,
            "steps": 1,
            "time": time,
        }

    def held_out(step: int) -> dict[str, Any]:
        loss = 2.1 + 3.5 * math.exp(-6 * step / number * rate / 5e-3)
        return {
            "step": step,
            "split": "validation",
            "mlm_loss": loss,
            "perplexity": math.exp(loss),
            "mlm_accuracy": 0.5 * step / number,
            "sequence_length": 32,
        }

    kept, killed = 100 * rows_a_step, 120 * rows_a_step
    first = [row(step, 1000 + 0.1 * step) for step in range(1, killed + 1)]
    again = 1000 + 0.1 * killed + 30
    second = [row(step, again + 0.1 * (step - kept)) for step in range(kept + 1, number + 1)]
    rows = [*first[:kept], *second]
    scores = [held_out(step) for step in range(number // 5, number + 1, number // 5)]
    merged = sorted([*rows, *scores], key=lambda r: (r["step"], "split" in r))
    write_lines(directory / "metrics.jsonl", merged)
    lost = [{**r, "resumed_at": kept} for r in first[kept:]]
    write_lines(directory / "metrics.aside.jsonl", lost)
    start = {"devices": 8, "device_kind": "TPU v4", "processes": 2, "versions": _VERSIONS}
    end = again + 0.1 * (number - kept)
    skipped = [
        {"event": "skip", "time": again + 0.1 * (s - kept), "step": s, "loss": "nan",
         "grad_norm": "nan"}
        for s in (150 * rows_a_step, 151 * rows_a_step)
    ]  # fmt: skip
    write_lines(
        directory / "events.jsonl",
        [
            {"event": "start", "time": 994.0, "step": 0, "seconds": 4.0, **start},
            {"event": "compile", "time": 1000.0, "phase": 0, "seconds": 6.0},
            {"event": "saving", "time": 1000 + 0.1 * kept, "step": kept, "seconds": 0.5},
            {"event": "save", "time": 1000.5 + 0.1 * kept, "step": kept, "seconds": 1.0},
            {"event": "start", "time": again - 2, "step": kept, "seconds": 3.0, **start},
            {"event": "resume", "time": again - 2, "step": kept, "seconds": 1.0},
            {"event": "compile", "time": again, "phase": 0, "seconds": 2.0},
            *skipped,
            {"event": "evaluate", "time": end + 1, "step": number, "seconds": 1.0},
            {"event": "stop", "time": end + 1.5, "step": number, "seconds": 20.0},
        ],
    )
    return directory


def write_finetuning(directory: Path) -> Path:
    """Writes a finished fine-tuning run of 30 steps: 6 epochs of 40 rows."""
    steps, rate = 30, 5e-3
    phase = PhaseConfig(sequence_length=24, steps=steps, global_batch_size=8, max_predictions=1)
    write_config(
        directory,
        tiny_config(
            name="text",
            optimizer=OptimizerConfig(learning_rate=rate, warmup_steps=3),
            phases=(phase,),
        ),
        corpus=None,
        task={"name": "text", "kind": "classification", "metrics": ["accuracy", "macro_f1"]},
        recipe={"epochs": 6.0},
        rows={"train": 40, "dev": 16},
    )
    rows: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        rows.append(
            {
                "step": step,
                "accuracy": 0.5 + step / (2 * steps),
                "grad_norm": 0.5,
                "learning_rate": rate * min(step / 3, 1 - step / steps),
                "loss": 0.7 - 0.4 * step / steps,
                "step_seconds": 0.1,
                "examples_per_second": 80.0 + step,
                "steps": 1,
                "time": 1000 + 0.1 * step,
            }
        )
        if step % 5 == 0:
            score = 0.5 + 0.0125 * step
            rows.append({"step": step, "split": "dev", "accuracy": score, "macro_f1": score})
    write_lines(directory / "metrics.jsonl", rows)
    start = {"devices": 1, "device_kind": "cpu", "processes": 1, "versions": _VERSIONS}
    write_lines(
        directory / "events.jsonl",
        [
            {"event": "start", "time": 994.0, "step": 0, "seconds": 4.0, **start},
            {"event": "compile", "time": 1000.0, "step": 0, "seconds": 5.0},
            {"event": "evaluate", "time": 1003.5, "step": steps, "seconds": 0.5},
            {"event": "save", "time": 1004.0, "step": steps, "seconds": 0.5},
            {"event": "stop", "time": 1004.0, "step": steps, "seconds": 14.0},
        ],
    )
    scores = {"dev": {"accuracy": 0.875, "macro_f1": 0.875}}
    result = {"task": "text", "steps": steps, "scores": scores, "diverged": False}
    (directory / "result.json").write_text(json.dumps(result))
    (directory / "results.md").write_text("| accuracy |\n|---|\n| 87.5 |\n")
    return directory
