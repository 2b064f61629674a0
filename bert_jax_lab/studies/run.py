"""Makes the missing runs of a study, each in a child process, and records how each run ended.

A run is done when its folder has a record with exit code 0. All facts about a run are on disk: an
interrupted study is processed again from the beginning, and several processes may work on it, each
on the runs that no other process holds.
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
from bert_jax.config import TrainConfig, to_dict
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
from bert_jax.progress import leave, note, note_once
from bert_jax.runtime.stop import ENDING, Signals, word_of
from bert_jax.workdir import log_reader
from bert_jax_lab.reports import goodput
from bert_jax_lab.reports.run_data import RunColumns
from bert_jax_lab.studies import corpus_tasks
from bert_jax_lab.studies.plan import PROBES_FILE, StudyPlan, StudyRun

RECORD = "record.json"
VALIDATION = "validation"
# A run with one of these exit codes would fail again and is not repeated. Other failures may have
# an external cause, such as memory or a missing file.
_FINAL = {kind.exit_code for kind in (ResumeRefused, NoUsableCheckpoint, NonFinite, Diverged)}
# Failures without a fault of the run: the study stops, and the same command resumes it.
_STOPPING = {
    kind.exit_code for kind in (DataDamaged, StorageFailed, Preempted, Interrupted, Unreachable)
}
# Seconds between two checks of a child process, and of other processes.
_POLL, _WAIT = 0.2, 0.5
# Bytes at the end of a log that are searched for the reason of a failure.
_TAIL = 8192
_CACHE = "JAX_COMPILATION_CACHE_DIR"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its exit code as a shell shows it, and the last line of its output."""

    code: int
    reason: str = ""
    # The name of the signal that stopped the study.
    stopped_by: str = ""


# Makes a run, given the descriptor of its lock and a function that shows a line of its log.
Execute = Callable[[StudyRun, int, Callable[[str], None]], Outcome]


# --- records --------------------------------------------------------------------------------------


def record_of(run: StudyRun) -> dict[str, Any] | None:
    """Returns how a run ended, with its metrics; None if it has not ended."""
    return strict_json.load(run.folder / RECORD, default=None)


def is_done(run: StudyRun) -> bool:
    """Returns whether a run has ended successfully."""
    record = record_of(run)
    return record is not None and record["code"] == 0


def write_record(run: StudyRun, outcome: Outcome) -> None:
    """Records how a run ended: `code`, `reason`, `time`, and the available metrics."""
    record: dict[str, Any] = {
        "code": outcome.code,
        "reason": outcome.reason if outcome.code else "",
        "time": time.time(),
    }
    if run.config is not None and run.folder.is_dir():
        record |= _pretrained(run.folder, run.config)
    elif run.task is not None and not outcome.code:
        summary = json.loads((run.folder / "results.json").read_text(encoding="utf-8"))
        record["score"] = summary["best"]["scores"][summary["metric"]]["median"]
    elif run.probes and not outcome.code:
        answers = json.loads((run.folder / PROBES_FILE).read_text(encoding="utf-8"))
        record["findings"] = answers["findings"]
    run.folder.mkdir(parents=True, exist_ok=True)
    write_json(run.folder / RECORD, record)


def _pretrained(folder: Path, config: TrainConfig) -> dict[str, Any]:
    """Returns the metrics of a run that has ended, successfully or not."""
    rows = log_reader.read_rows(folder)
    account = goodput.account(folder)
    _, scores = log_reader.closing_rows(rows)
    step, columns = max((row["step"] for row in rows), default=0), RunColumns(to_dict(config), ())
    return {
        "figures": {
            name: value
            for name, value in scores.get(VALIDATION, {}).items()
            if isinstance(value, float) and name != "time"
        },
        "step": step,
        "warnings": [t for _, t in log_reader.unexpected(log_reader.read_events(folder))],
        "starts": account["starts"],
        "training_seconds": account["seconds"]["training"] + account["seconds"]["data_wait"],
        # Up to the last step: the run may have failed, or a hook may have ended it.
        "tokens": columns.positions([step])[0],
        **parameters_of(config),
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


# --- the list of runs -----------------------------------------------------------------------------


def missing(plan: StudyPlan) -> list[StudyRun]:
    """Returns the runs to make, in order, except runs that would fail again or need such a run."""
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


def make_missing(plan: StudyPlan, execute: Execute, *, stopped_by: Callable[[], str]) -> list[str]:
    """Makes the missing runs in order and returns their names; a run that fails is recorded, and
    the next run begins.

    `stopped_by` returns the name of a received signal, or ""; it is called before each run. If
    other processes hold all remaining runs, or the runs that these need, the function waits.

    Raises Preempted and Interrupted, and the error of a run that failed without its own fault, for
    example on a full disk or a damaged corpus.
    """
    made: list[str] = []
    while True:
        left = [run for run in missing(plan) if run.name not in made]
        waits_for = ""
        for run in left:
            if not all(map(is_done, run.needs)):
                continue
            if name := stopped_by():
                raise _stopped(run, Outcome(0, "stopped between two runs", name))
            with file_lock.hold(plan.workdir / "locks" / run.folder.name) as held:
                if held is None:
                    waits_for = waits_for or run.name
                    continue
                if run in missing(plan):  # another process may have just made it
                    where = f"{len(plan.runs) - len(left) + 1}/{len(plan.runs)} {run.name}"
                    _make(plan, run, execute, held, where)
                    made.append(run.name)
                break
        else:
            if not waits_for:
                return made
            note_once(f"waiting for {waits_for}, which another process is making")
            time.sleep(_WAIT)


def _make(plan: StudyPlan, run: StudyRun, execute: Execute, held: int, where: str) -> None:
    """Makes and records one run."""
    note(f"{where}: begins")
    # A failed run is repeated as if it had not ended.
    (run.folder / RECORD).unlink(missing_ok=True)
    if run.rule:
        corpus_tasks.write_rows(plan.corpus, run.rule, run.folder)
        outcome = Outcome(0)
    else:
        if run.probes:  # `probe` writes a file into a directory that exists
            run.folder.mkdir(parents=True, exist_ok=True)
        outcome = execute(run, held, lambda line: note(f"{where}: {line}"))
    if outcome.code and (outcome.stopped_by or outcome.code in _STOPPING):
        raise _stopped(run, outcome)
    write_record(run, outcome)
    if outcome.code:
        note(f"{where}: failed with exit code {outcome.code}: {outcome.reason}")


def _stopped(run: StudyRun, outcome: Outcome) -> BertJaxError:
    """Returns the error that ends a study because of one run."""
    message = f"{run.name}: {outcome.reason}; the same command resumes the study"
    if outcome.stopped_by == "SIGINT" or outcome.code == Interrupted.exit_code:
        return Interrupted(message)
    if outcome.stopped_by:
        return Preempted(message)
    return with_exit_code(outcome.code, message)


# --- child processes ------------------------------------------------------------------------------


class Children(Signals):
    """Runs `bert-jax` commands one at a time, as child processes, and forwards signals to them.

    A child that is killed, by a signal or for its memory, does not end other runs. SIGTERM, SIGHUP
    and Ctrl-C reach the child, which then saves; a second Ctrl-C ends the child at once. The log of
    a child is a file, since the child may outlive this process.
    """

    def __init__(self, *, compiled: Path):
        """`compiled` is the compilation cache unless the environment names another."""
        super().__init__(ENDING, self._hear)
        self._environment = os.environ | {_CACHE: os.environ.get(_CACHE, str(compiled))}
        self._child: subprocess.Popen | None = None
        # The first signal that was received.
        self._heard: int | None = None

    def stopped_by(self) -> str:
        """Returns the name of the first signal, or ""."""
        return "" if self._heard is None else signal.Signals(self._heard).name

    def _hear(self, number: int) -> None:
        is_first, self._heard = self._heard is None, self._heard or number
        self._forward(number)
        if number == signal.SIGINT and not is_first and self._child is None:
            leave(Interrupted.exit_code)

    def _forward(self, number: int) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    def run(
        self, arguments: Sequence[str], *, log: Path, lock: int, show: Callable[[str], None]
    ) -> Outcome:
        """Runs `bert-jax ARGUMENTS` to its end.

        The child holds the lock with the descriptor `lock` while it lives. Its messages are written
        to `log` and, line by line, to `show`; its results to a `.out` file next to the log.
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
                pass_fds=(lock,),
            )
            if self._heard is not None:  # received while the child was started
                self._forward(self._heard)
            while self._child.poll() is None:
                time.sleep(_POLL)
                self._show(read.read(), show)
            code = self._child.wait()
            self._child = None
            self._show(read.read(), show)
            read.seek(max(start, read.seek(0, os.SEEK_END) - _TAIL))
            end = read.read().decode(errors="replace")
        reason = _reason(end)
        if self._heard is not None and ": error: " not in end:
            reason = word_of(self._heard)  # the child had not yet set its signal handlers
        return Outcome(code if code >= 0 else 128 - code, reason, self.stopped_by())

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
