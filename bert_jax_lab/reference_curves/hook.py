"""The hook `expected_curves`: warns if the masked-LM losses of a run are not healthy.

The demo's config uses the hook. A warning is printed and logged as the event `unexpected`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.config import TrainConfig
from bert_jax.training.hooks import Hook, Stop
from bert_jax.training.job import Scores, TrainingJob
from bert_jax.workdir import log_reader, run_directory
from bert_jax_lab.reference_curves import reference
from bert_jax_lab.reference_curves.watch import Watch

# The number of points of a drawn band.
_DRAWN = 60


class ExpectedCurves(Hook):
    """Watches the masked-LM losses of a run; does nothing for other tasks, and for a run that
    continues from trained weights.
    """

    def __init__(self) -> None:
        self._reference: reference.Reference | None = None
        self._watch: Watch | None = None

    def prepare(self, job: TrainingJob, directory: Path) -> None:
        is_continued = job.begins_trained or run_directory.is_continued(directory)
        if job.manifest is None or is_continued:
            return
        config, entropy = job.config, job.manifest["unigram_entropy_nats"]
        self._reference = reference.demo(config, entropy)
        is_mixture = job.manifest.get("corpora", 1) > 1
        self._watch = Watch(
            self._warn,
            total_steps=config.total_steps,
            warmup_steps=config.optimizer.warmup_steps,
            # The entropy of several corpora depends on their shares.
            entropy=None if is_mixture else entropy,
            reference=self._reference,
        )

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
        """Returns `expected`: the range of the last validation loss, and the warnings so far."""
        if self._watch is None:
            return {}
        events = log_reader.read_events(self.run.directory)
        found: dict[str, Any] = {
            "warnings": [text for at, text in log_reader.unexpected(events) if at <= step]
        }
        if (known := self._reference) and (expected := known.band(known.validation, step)):
            found |= {"mlm_loss": [*expected], "from": known.described}
        return {"expected": found}


def expected(config: TrainConfig, entropy: float) -> tuple[str, list[tuple[int, float, float]]]:
    """Describes the reference of a config with the hook, and returns the expected validation losses
    as `(step, low, high)`; ("", []) without the hook or a reference.
    """
    is_watched = any(hook.kind == "expected_curves" for hook in config.hooks)
    found = reference.demo(config, entropy) if is_watched else None
    if found is None:
        return "", []
    steps = sorted({round(config.total_steps * i / _DRAWN) for i in range(1, _DRAWN + 1)})
    bands = ((step, found.band(found.validation, step)) for step in steps)
    return found.described, [(step, *band) for step, band in bands if band is not None]
