"""The hook `expected_curves`: compares the losses of a pre-training run with healthy runs.

The demo's config uses the hook. A warning is printed and logged as the event `unexpected`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import HookConfig, TrainConfig
from bert_jax.config.fields import section, setting
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.training.hooks import Hook, Stop
from bert_jax.training.job import Row, Run, Scores, TrainingJob
from bert_jax.workdir import log_reader, run_directory
from bert_jax_lab.reference_curves import reference
from bert_jax_lab.reference_curves.curve import Point, band
from bert_jax_lab.reference_curves.reference import Reference
from bert_jax_lab.reference_curves.watch import Watch

# The number of points of a drawn band.
_DRAWN = 60


@section
class ExpectedCurvesOptions(HookConfig, kind="expected_curves"):
    """The options of `ExpectedCurves`."""

    expect: str = setting(
        "", "The reference: the workdir of a finished run; empty for the reference of the demo."
    )


class ExpectedCurves(Hook):
    """Watches the masked-LM losses of a run; does nothing for other tasks."""

    def __init__(self, *, expect: str = ""):
        """`expect` is the workdir of a reference; "" means the reference of the demo for runs of
        the demo's config, and no reference for other runs.
        """
        self._expect = expect
        self._reference: Reference | None = None
        self._watch: Watch | None = None

    def prepare(self, job: TrainingJob, directory: Path) -> None:
        """Reads the reference.

        Raises UsageError, before a new run begins, for a reference that is not comparable.
        """
        if job.manifest is None:
            return
        config, entropy = job.config, job.manifest["unigram_entropy_nats"]
        is_continued = job.begins_trained or run_directory.is_continued(directory)
        try:
            found = self.reference_for(config, entropy)
        except UsageError as error:
            # A run that resumes on another machine may lack the reference.
            if not (directory / run_directory.CONFIG).is_file():
                raise
            note(f"losses are not compared: {error}")
            found = None
        self._reference = None if is_continued else found
        is_mixture = job.manifest.get("corpora", 1) > 1
        self._watch = Watch(
            self._warn,
            total_steps=config.total_steps,
            warmup_steps=config.optimizer.warmup_steps,
            # The entropy of several corpora depends on their shares.
            entropy=None if is_continued or is_mixture else entropy,
            reference=self._reference,
            **({"shift": self._reference.shift_for(config)} if self._reference else {}),
        )

    def reference_for(self, config: TrainConfig, entropy: float) -> Reference | None:
        """Returns the reference of a run of a config, on a corpus with a unigram entropy in nats.

        Raises UsageError if `expect` names a reference that is not comparable.
        """
        found = reference.read(self._expect) if self._expect else reference.demo()
        difference = found.difference(config, entropy)
        if difference and self._expect:
            raise UsageError(f"hooks: expect {self._expect} is not comparable: {difference}")
        return None if difference else found

    def begin(self, run: Run, step: int, rows: Sequence[Row]) -> Stop | None:
        if self._watch is not None:
            self._watch.recall(rows)
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
            self._watch.evaluated(step, scores["validation"])
        return None

    def closing_figures(self, step: int) -> dict[str, Any]:
        """Returns `expected`: the band of the last validation loss, and the warnings so far."""
        if self._watch is None:
            return {}
        events = log_reader.read_events(self.run.directory)
        found: dict[str, Any] = {
            "warnings": [text for at, text in log_reader.unexpected(events) if at <= step]
        }
        if self._reference is not None:
            shift = self._reference.shift_for(self.run.job.config)
            for _, low, high in band(self._reference.validation, [step], shift=shift):
                found |= {"mlm_loss": [low, high], "from": self._reference.described}
        return {"expected": found}


def expected(config: TrainConfig, entropy: float) -> tuple[str, list[Point]]:
    """Describes the reference of a config's hook, and returns the expected validation losses; ("",
    []) without a hook or a reference.
    """
    for options in config.hooks:
        if isinstance(options, ExpectedCurvesOptions):
            try:
                found = ExpectedCurves(expect=options.expect).reference_for(config, entropy)
            except UsageError:  # the reference is on another machine
                continue
            if found is not None:
                steps = sorted(
                    {round(config.total_steps * i / _DRAWN) for i in range(1, _DRAWN + 1)}
                )
                return found.described, band(found.validation, steps, shift=found.shift_for(config))
    return "", []
