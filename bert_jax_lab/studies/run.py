"""Makes the missing runs of a study, each in a child process, and records how each run ended.

A run is done when its folder has a record with exit code 0. Order and sharing between several
processes are those of any list of runs (workdir/run_list.py).
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax import file_lock, strict_json
from bert_jax.config import TrainConfig
from bert_jax.errors import (
    BertJaxError,
    DataDamaged,
    Diverged,
    Interrupted,
    NonFinite,
    NoUsableCheckpoint,
    Preempted,
    ResumeRefused,
    StorageFailed,
    Unreachable,
    with_exit_code,
)
from bert_jax.files import write_json
from bert_jax.progress import leave, note
from bert_jax.runtime.stop import ENDING, Signals, word_of
from bert_jax.workdir import goodput, log_reader, run_list
from bert_jax.workdir.run_list import ListProgress
from bert_jax_lab.studies import corpus_tasks
from bert_jax_lab.studies.plan import (
    PROBES_FILE,
    FinetuneRun,
    PretrainRun,
    ProbeRun,
    RowsRun,
    StudyPlan,
    StudyRun,
    flops_of,
    tokens_of,
)

RECORD = "record.json"
VALIDATION = "validation"
# A run with one of these exit codes would fail again: it is not tried again. Other failures may
# have a cause outside of the run, such as memory or a missing file.
_FINAL = {kind.exit_code for kind in (ResumeRefused, NoUsableCheckpoint, NonFinite, Diverged)}
# The run is not at fault: the study stops, and the same command resumes it.
_STOPPING = {
    kind.exit_code for kind in (DataDamaged, StorageFailed, Preempted, Interrupted, Unreachable)
}
# Seconds between two looks at a child process.
_POLL = 0.2
# Bytes at the end of a log that are searched for the reason of a failure.
_TAIL = 8192
_CACHE = "JAX_COMPILATION_CACHE_DIR"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its exit code as a shell shows it, and the last line of its output."""

    code: int
    reason: str = ""
    # The name of the signal that stopped the study, or "budget" if its time was spent.
    stopped_by: str = ""


# Makes a run, given the descriptor of its lock and a function that shows a line of its log.
Execute = Callable[[StudyRun, int, Callable[[str], None]], Outcome]


# --- records --------------------------------------------------------------------------------------


def record_of(run: StudyRun) -> dict[str, Any] | None:
    """Returns how a run ended, with its metrics; None if it has not ended."""
    return strict_json.load(run.folder / RECORD, default=None)


def is_done(run: StudyRun) -> bool:
    """Returns whether a run has ended well."""
    record = record_of(run)
    return record is not None and record["code"] == 0


def write_record(run: StudyRun, outcome: Outcome) -> None:
    """Records how a run ended: `code`, `reason`, `time`, and metrics as far as there are any."""
    record: dict[str, Any] = {
        "code": outcome.code,
        "reason": outcome.reason if outcome.code else "",
        "time": time.time(),
    }
    if isinstance(run, PretrainRun) and run.folder.is_dir():
        record |= _pretrained(run)
    elif isinstance(run, FinetuneRun) and not outcome.code:
        record |= _finetuned(run)
    elif isinstance(run, ProbeRun) and not outcome.code:
        answers = json.loads((run.folder / PROBES_FILE).read_text(encoding="utf-8"))
        record["findings"] = answers["findings"]
    run.folder.mkdir(parents=True, exist_ok=True)
    write_json(run.folder / RECORD, record)


def _pretrained(run: PretrainRun) -> dict[str, Any]:
    """Returns the metrics of a run that has ended, well or not."""
    rows = log_reader.read_rows(run.folder)
    account = goodput.account(run.folder)
    last, scores = log_reader.closing_rows(rows)
    step = max((row["step"] for row in rows), default=0)
    return {
        "figures": {
            name: value
            for name, value in scores.get(VALIDATION, {}).items()
            if isinstance(value, float) and name != "time"
        },
        "step": last.get("step", 0),
        "warnings": [t for _, t in log_reader.unexpected(log_reader.read_events(run.folder))],
        "starts": account["starts"],
        "seconds": account["wall_seconds"] - account["seconds"]["down"],
        "training_seconds": account["seconds"]["training"] + account["seconds"]["data_wait"],
        # Up to the last step: the run may have failed, or a hook may have ended it.
        "tokens": tokens_of(run.config, step),
        "flops": flops_of(run.config, step),
        **parameters_of(run.config),
    }


def parameters_of(config: TrainConfig) -> dict[str, int]:
    """Returns the number of parameters of a model, and of its blocks without embeddings."""
    from bert_jax.model import bert

    params = bert.abstract_params(config.model, config.head)
    encoder = params["encoder"]
    blocks = {name: part for name, part in encoder.items() if name != "embeddings"}
    return {
        "parameters": bert.parameter_count(params),
        "block_parameters": bert.parameter_count(blocks),
    }


def _finetuned(run: FinetuneRun) -> dict[str, Any]:
    summary = json.loads((run.folder / "results.json").read_text(encoding="utf-8"))
    best = summary["best"]["scores"]
    account = goodput.account(run.folder)
    return {
        "metric": summary["metric"],
        "score": best[summary["metric"]]["median"],
        "scores": {name: found["median"] for name, found in best.items()},
        "seconds": account["wall_seconds"] - account["seconds"]["down"],
    }


# --- the list of runs -----------------------------------------------------------------------------


def missing(plan: StudyPlan) -> list[StudyRun]:
    """Returns the runs to make, in order, without runs that would fail again or that need one."""
    lost: set[str] = set()
    found = []
    for run in plan.runs:
        record = record_of(run)
        if record is not None and record["code"] == 0:
            continue
        would_fail = record is not None and record["code"] in _FINAL
        if would_fail or lost & {needed.name for needed in run.needs}:
            lost.add(run.name)
        else:
            found.append(run)
    return found


def make_missing(
    plan: StudyPlan, execute: Execute, *, stopped_by: Callable[[], str], waits: bool = True
) -> ListProgress[StudyRun]:
    """Makes the missing runs in order; a run that fails is recorded, and the next run begins.

    `stopped_by` returns, between runs, the name of a signal that was received, "budget" if the time
    is spent, or "". If other processes hold all runs that are left, or the runs that those need,
    the function waits, unless `waits` is false.

    Raises Preempted and Interrupted, and the error of a run that is not at fault itself: a full
    disk, a damaged corpus.
    """

    def is_stopped(run: StudyRun) -> bool:
        reason = stopped_by()
        if reason not in ("", "budget"):
            raise _stopped(run, Outcome(0, "stopped between two runs", reason))
        return bool(reason)

    def make(run: StudyRun, held: int, left: Sequence[StudyRun]) -> bool:
        where = f"{len(plan.runs) - len(left) + 1}/{len(plan.runs)} {run.name}"
        note(f"{where}: begins")
        # The folder of a failed run is tried again as if it had not ended.
        (run.folder / RECORD).unlink(missing_ok=True)
        if isinstance(run, RowsRun):
            corpus_tasks.write_rows(run.corpus, run.rule, run.folder)
            outcome = Outcome(0)
        else:
            outcome = execute(run, held, lambda line: note(f"{where}: {line}"))
        if outcome.code and outcome.stopped_by == "budget":
            return False
        if outcome.code and (outcome.stopped_by or outcome.code in _STOPPING):
            raise _stopped(run, outcome)
        write_record(run, outcome)
        if outcome.code:
            note(f"{where}: failed with exit code {outcome.code}: {outcome.reason}")
        return True

    return run_list.make_missing(
        lambda: missing(plan),
        make,
        is_ready=lambda run, left: all(map(is_done, run.needs)),
        hold=lambda run: file_lock.hold(plan.workdir / "locks" / run.folder.name),
        is_stopped=is_stopped,
        waits=waits,
    )


def _stopped(run: StudyRun, outcome: Outcome) -> BertJaxError:
    """Returns the error that ends a study because of one run."""
    message = f"{run.name}: {outcome.reason}; the same command resumes the study"
    if outcome.stopped_by == "SIGINT" or outcome.code == Interrupted.exit_code:
        return Interrupted(message)
    if outcome.stopped_by:
        return Preempted(message)
    return with_exit_code(outcome.code, message)


# --- child processes ------------------------------------------------------------------------------


class Children:
    """Runs `bert-jax` commands one at a time, as child processes, and forwards signals to them.

    A child that is killed, by a signal or for its memory, ends no other run. SIGTERM, SIGHUP and
    Ctrl-C reach the child, which then saves; a second Ctrl-C ends the child at once. The log of a
    child is a file, since the child may outlive this process.
    """

    def __init__(self, *, compiled: Path, until: float | None = None):
        """`compiled` is the compilation cache unless the environment names another; `until` is when
        the time is spent, on the monotonic clock.
        """
        self._environment = os.environ | {_CACHE: os.environ.get(_CACHE, str(compiled))}
        self._until = until
        self._child: subprocess.Popen | None = None
        # The first signal that was received.
        self._heard: int | None = None
        self._signals = Signals(ENDING, self._hear)

    def __enter__(self) -> "Children":
        self._signals.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._signals.__exit__()

    def stopped_by(self) -> str:
        """Returns the name of the first signal, "budget" if the time is spent, or ""."""
        if self._heard is not None:
            return signal.Signals(self._heard).name
        is_spent = self._until is not None and time.monotonic() >= self._until
        return "budget" if is_spent else ""

    def _hear(self, number: int) -> None:
        is_first, self._heard = self._heard is None, self._heard or number
        self._forward(number)
        if number == signal.SIGINT and not is_first and self._child is None:
            leave(Interrupted.exit_code)

    def _forward(self, number: int) -> None:
        child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(number)

    def run(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        lock: int | None = None,
        show: Callable[[str], None] = lambda line: None,
    ) -> Outcome:
        """Runs `bert-jax ARGUMENTS` to its end.

        The child keeps the lock with the descriptor `lock` while it lives. Its messages go to
        `log`, and line by line to `show`; its results go to a `.out` file next to the log.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with (
            log.with_suffix(".out").open("ab") as out,
            log.open("ab") as written,
            log.open("rb") as read,
        ):
            start = read.seek(0, os.SEEK_END)
            self._child = subprocess.Popen(
                [sys.executable, "-m", "bert_jax", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=written,
                env=self._environment,
                # Not in the terminal's group: Ctrl-C would reach the child twice.
                process_group=0,
                pass_fds=() if lock is None else (lock,),
            )
            if self._heard is not None:  # received while the child was started
                self._forward(self._heard)
            is_over_budget = False
            while self._child.poll() is None:
                if not is_over_budget and self.stopped_by() == "budget":
                    is_over_budget = True
                    self._forward(signal.SIGTERM)
                time.sleep(_POLL)
                self._show(read.read(), show)
            code = self._child.wait()
            self._child = None
            self._show(read.read(), show)
            read.seek(max(start, read.seek(0, os.SEEK_END) - _TAIL))
            end = read.read().decode(errors="replace")
        code = code if code >= 0 else 128 - code
        if self._heard is None:
            return Outcome(code, _reason(end), "budget" if is_over_budget else "")
        # The interpreter ends a child that has not yet set its signal handlers.
        reason = _reason(end) if ": error: " in end else word_of(self._heard)
        return Outcome(code, reason, self.stopped_by())

    def _show(self, output: bytes, show: Callable[[str], None]) -> None:
        for line in output.decode(errors="replace").splitlines():
            if self._heard is not None and line.startswith("Traceback"):
                return  # of the interruption; the log has it
            if line.strip():
                show(line.strip())


def _reason(output: str) -> str:
    """Returns the last error of a log, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.partition(": error: ")[2] for line in lines if ": error: " in line]
    return (errors or lines or [""])[-1]
