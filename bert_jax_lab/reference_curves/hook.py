"""The hook `expected_curves`: compares a run of pre-training with healthy runs while it trains.

A warning is a line above the bar and the event `unexpected`. The closing figures have what is
expected of the last held-out loss, and so has `evaluate`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import TrainConfig
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.training.hooks import Hook, Stop
from bert_jax.training.job import Row, Run, Scores, TrainingJob
from bert_jax.workdir import log_reader, run_directory
from bert_jax_lab.reference_curves import recorded_runs
from bert_jax_lab.reference_curves.expectation import Expectation, expectation_of, expected_points
from bert_jax_lab.reference_curves.published_losses import published
from bert_jax_lab.reference_curves.watch import Watch


class ExpectedCurves(Hook):
    """Watches the losses of masked words; of tasks nothing is known, and nothing happens."""

    def __init__(self, expect: Sequence[Path | str] = ()):
        """`expect` names finished runs of the run's kind, or a study of them."""
        self._paths, self._expectation, self._watch = expect, None, None

    def prepare(self, job: TrainingJob, directory: Path) -> Mapping[str, Any]:
        """Returns the curves of the runs that are named, which the workdir keeps.

        Raises UsageError where one of them is no run of this kind.
        """
        if job.manifest is None:
            return {}
        kept: dict[str, Any] = {}
        entropy = job.manifest["unigram_entropy_nats"]
        groups = [*recorded_runs.named(directory), *recorded_runs.shipped()]
        if self._paths:
            try:
                group = recorded_runs.of_runs(job.config, entropy, self._paths)
                groups = [recorded_runs.parsed(group), *groups]
                kept[run_directory.EXPECTED] = [group]
            except UsageError as error:
                # Another machine need not have those runs: the workdir has kept their curves.
                if not recorded_runs.named(directory):
                    raise
                note(f"the curves that were expected when this run began are kept: {error}")
        self._expectation = expectation_of(
            job.config,
            entropy,
            groups,
            is_continued=job.begins_trained or run_directory.is_continued(directory),
            unknown_share=(job.manifest.get("unknown_share") or {}).get("train", 0.0),
            is_mixture=job.manifest.get("corpora", 1) > 1,
        )
        return kept

    def begin(self, run: Run, step: int, rows: Sequence[Row]) -> Stop | None:
        if self._expectation is not None:
            self._watch = Watch(self._expectation, self._warn)
            self._watch.recall(rows)
            # The first warning is of the text: the run has to be known.
            self.run = run
            self._watch.begin(step)
        return super().begin(run, step, rows)

    def _warn(self, step: int, reason: str, text: str) -> None:
        self.run.event("unexpected", step=step, reason=reason, said=text)
        self.run.print(f"warning: step {step}: {text}")

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> Stop | None:
        if self._watch is not None:
            self._watch.see(step, metrics)
        return None

    def on_evaluation(self, step: int, scores: Scores) -> Stop | None:
        if self._watch is not None and "validation" in scores:
            found = scores["validation"]
            self._watch.evaluated(step, found, length=found.get("sequence_length"))
        return None

    def closing_figures(self, step: int) -> dict[str, Any]:
        """Returns `expected`: the band of the last held-out loss, what papers have, and what was
        warned of on the way.
        """
        if self._expectation is None:
            return {}
        events = log_reader.read_events(self.run.directory)
        found = {
            "mlm_loss": None,
            "from": None,
            **(_band(self._expectation, step) or {}),
            "published": [dataclasses.asdict(each) for each in published(self.run.job.config)],
            "warnings": [text for at, text in log_reader.unexpected(events) if at <= step],
        }
        return {"expected": found}

    def expected(
        self, config: TrainConfig, manifest: Mapping[str, Any], directory: Path, step: int
    ) -> dict[str, Any] | None:
        expectation = expectation_of(
            config,
            manifest["unigram_entropy_nats"],
            [*recorded_runs.named(directory), *recorded_runs.shipped()],
            is_continued=run_directory.is_continued(directory),
        )
        return _band(expectation, step)


def _band(expectation: Expectation, step: int) -> dict[str, Any] | None:
    """Returns the lowest and the highest held-out loss that is expected at a step."""
    source, points = expected_points(expectation, [])
    return next(
        ({"mlm_loss": [low, high], "from": source} for at, low, high in points if at == step), None
    )
