"""Says how long the runs of a study take, by a few steps of each, then by the runs themselves."""

import hashlib
import json
import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bert_jax import config_loader, worker
from bert_jax.config import TrainConfig, to_dict
from bert_jax.errors import UsageError
from bert_jax.files import write_json
from bert_jax.progress import duration, note
from bert_jax.training.hooks import evaluations_in
from bert_jax_lab.studies.corpus_tasks import MOST_ROWS
from bert_jax_lab.studies.records import is_done, record_of
from bert_jax_lab.studies.runs import (
    FinetuneRun,
    PretrainRun,
    ProbeRun,
    StudyPlan,
    StudyRun,
    tokens_of,
)

RATES = "rates.json"
# A process of `bert-jax`: imports, opening the corpus, the last save.
_START_SECONDS = 12.0
_PREPARE_SECONDS = 60.0
_PROBE_SECONDS = 20.0
# Returns what `measure` does.
Measure = Callable[[TrainConfig], dict[str, Any]]


def measure(config: TrainConfig) -> dict[str, Any]:
    """Returns `compile_seconds`, and `step_seconds` of each phase, by a few steps of each."""
    from bert_jax.training.preflight import mesh_of
    from bert_jax_lab.doctor.checked_run import Timing
    from bert_jax_lab.doctor.speed import time_steps

    timings: list[Timing] = []
    time_steps(config, mesh_of(config), timings)
    return {
        "compile_seconds": sum(timing.compile_seconds for timing in timings),
        "step_seconds": [timing.step_seconds for timing in timings],
    }


def measured_apart(
    compiled: Path, *, extend: Sequence[Path] = ()
) -> tuple[ProcessPoolExecutor, Measure]:
    """Returns a process of its own that measures, and how to ask it: this one holds no device.

    It executes the files of `extend` first, which register what configs name.
    """
    worker.prepare_for_workers()
    process = ProcessPoolExecutor(
        max_workers=1,
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(compiled, tuple(extend)),
    )
    return process, lambda config: process.submit(measure, config).result()


def _begin(compiled: Path, extend: Sequence[Path]) -> None:
    worker.begin()
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(compiled))
    for file in extend:
        config_loader.execute(file)


def key_of(config: TrainConfig) -> str:
    """Returns what configs that take equally long have in common: all but name and seed."""
    values = to_dict(config) | {"name": "", "seed": 0}
    del values["hooks"]  # they take no time
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def measure_missing(plan: StudyPlan, ask: Measure, *, stopped_by: Callable[[], str] = str) -> None:
    """Measures each variant of which neither a run nor a measurement is there yet.

    What is measured is kept in `rates.json`. A variant that cannot be built is left to its run,
    which says why. Stops early when `stopped_by` says so.
    """
    rates = _rates(plan.workdir)
    wanted = {
        key_of(run.config): run
        for run in plan.runs
        if isinstance(run, PretrainRun) and record_of(plan.workdir, run) is None
    }
    missing = {key: run for key, run in wanted.items() if key not in rates}
    for number, (key, run) in enumerate(missing.items(), 1):
        if stopped_by():
            return
        note(f"times the steps of {run.variant}, {number} of {len(missing)}")
        try:
            rates[key] = ask(run.config)
        except (UsageError, RuntimeError) as error:  # jax's own, where memory is short
            note(f"{run.variant} cannot be timed: {str(error).splitlines()[0]}")
            continue
        write_json(plan.workdir / RATES, rates)


def _rates(workdir: Path) -> dict[str, Any]:
    try:
        return json.loads((workdir / RATES).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


class StudyEstimate:
    """Seconds of runs, from what is measured; a run that has ended counts for its other seeds."""

    def __init__(self, plan: StudyPlan):
        self._plan, self._rates = plan, _rates(plan.workdir)
        self._ended: dict[str, list[float]] = {}
        for run in plan.whole:
            record = record_of(plan.workdir, run)
            if record is not None and is_done(record) and "seconds" in record:
                self._ended.setdefault(_kind(run), []).append(record["seconds"])

    def seconds_of(self, run: StudyRun) -> float | None:
        """Returns how long a run takes from its beginning; None where nothing is known."""
        if ended := self._ended.get(_kind(run)):
            return statistics.median(ended)
        if isinstance(run, PretrainRun):
            rate = self._rates.get(key_of(run.config))
            return None if rate is None else _pretraining(run.config, rate)
        if isinstance(run, FinetuneRun):
            (pretraining,) = run.needs
            assert isinstance(pretraining, PretrainRun)
            rate = self._rates.get(key_of(pretraining.config))
            return None if rate is None else _finetuning(run, pretraining.config, rate)
        return _PROBE_SECONDS if isinstance(run, ProbeRun) else _PREPARE_SECONDS

    def total(self, runs: Sequence[StudyRun]) -> float | None:
        """Returns the seconds of several runs; None where one of them is not known."""
        each = [self.seconds_of(run) for run in runs]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) if len(known) == len(each) else None

    def line(self, run: StudyRun, left: Sequence[StudyRun]) -> str:
        """Returns what to say where a run begins, and `left` are it and those after it."""
        one, all_ = self.seconds_of(run), self.total(left)
        if one is None:
            return "begins"
        rest = "" if all_ is None else f", with all that is left {duration(all_)}"
        return f"begins, about {duration(one)}{rest}"


def _kind(run: StudyRun) -> str:
    """Returns what runs that differ in the seed only have in common."""
    if isinstance(run, PretrainRun):
        return key_of(run.config)
    if isinstance(run, FinetuneRun):
        return f"{run.variant} {run.task.name} {run.train_rows}"
    if isinstance(run, ProbeRun):
        return f"{run.variant} {' '.join(run.probes)}"
    return run.name


def _pretraining(config: TrainConfig, rate: dict[str, Any]) -> float:
    seconds = _START_SECONDS + rate["compile_seconds"]
    steps = zip(config.phases, rate["step_seconds"], strict=True)
    for number, (phase, step) in enumerate(steps):
        # A pass forward is a third of an update.
        evaluation = config.evaluation.num_examples * step / phase.global_batch_size / 3
        seconds += phase.steps * step + evaluations_in(config, number) * evaluation
    return seconds


def _finetuning(run: FinetuneRun, config: TrainConfig, rate: dict[str, Any]) -> float:
    speed = tokens_of(config) / sum(
        phase.steps * step for phase, step in zip(config.phases, rate["step_seconds"], strict=True)
    )
    rows = run.train_rows or MOST_ROWS
    return (
        _START_SECONDS + rate["compile_seconds"] + rows * run.task.epochs * run.task.length / speed
    )
