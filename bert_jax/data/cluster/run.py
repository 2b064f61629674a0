"""A corpus made by an engine: the part of `prepare` that begins the job and waits for it."""

import contextlib
import inspect
import io
import itertools
import json
import logging
import math
import secrets
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax import strict_json
from bert_jax.data.cluster import stages
from bert_jax.data.cluster.package import write_wheel
from bert_jax.data.cluster.reports import Reports, error_of
from bert_jax.data.cluster.shared import Shared
from bert_jax.data.cluster.values import Job
from bert_jax.data.corpus.output import PARTS, only_writer, require_own, storage_failures
from bert_jax.data.corpus.prepare import SAMPLE_BYTES, asked, prepare
from bert_jax.data.corpus.preview import LOOKED_AT_BYTES
from bert_jax.data.corpus.request import Request, differences_of, finished
from bert_jax.data.corpus.store import MANIFEST
from bert_jax.data.matching.near_duplicates import require_rensa
from bert_jax.data.sources.address import KINDS, is_address
from bert_jax.data.sources.read import is_here, is_stdin, left_out
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import BertJaxError, DataDamaged, UsageError, install_command
from bert_jax.progress import Progress, note
from bert_jax.worker import kill_descendants

# Units of whose documents one range has the words; and the most ranges.
_UNITS_A_RANGE, _MOST_RANGES = 64, 1024
# Seconds after which workers that give no sign of life are taken for dead: processes that wait for
# work, and containers that are fetched first.
_PATIENCE, _PATIENCE_OF_CONTAINERS = 60.0, 600.0
# An engine may group for so many times longer, while no worker has anything to do.
_IDLE = 5
# Seconds for which the job's folder may be out of reach from here.
_UNHEARD = 900.0
_WITHOUT_CONTAINERS = ("EXTERNAL", "PROCESS", "LOOPBACK")
# Seconds between two looks at the job.
_NEAR, _FAR = 0.5, 5.0
# What runs `DirectRunner`: Beam would fetch another program for it from the web.
_DIRECT = "DirectRunner"
_LOCAL = "bert_jax.data.cluster.direct_runner.DirectRunner"
_DATAFLOW = "DataflowRunner"
_RUNNERS = (_DIRECT, _DATAFLOW, "FlinkRunner", "SparkRunner", "PortableRunner")
_FAILURE = "failure.txt"
# Options of a runner that say where workers have bert-jax from.
_WITH_PACKAGE = ("extra_package", "requirements_file", "sdk_container_image", "setup_file")


def prepare_on(
    runner: str, flags: Sequence[str], sources: Sequence[str], output: str, **options: Any
) -> dict[str, Any]:
    """Does as `prepare`, by an engine: the Beam runner of this name, with `flags` of its own.

    `output` may be at an address. Returns the content of corpus.json. Raises as `prepare` does,
    UsageError for what only one machine can do, and BertJaxError where the job fails, or its
    workers give no sign of life.
    """
    if "workers" in options:
        raise UsageError("`workers` is for this machine: those of a runner stand after --")
    request, given = request_of(sources, output, options)
    # Beam takes names in any case, and without their end.
    short = {name.lower().removesuffix("runner"): name for name in _RUNNERS}
    runner = short.get(runner.lower().removesuffix("runner"), runner)
    _require_for_many(request, runner, output)
    # A worker may have begun in another folder.
    place = Shared(output if is_address(output) else str(Path(output).absolute()))
    with contextlib.ExitStack() as held:
        if not place.is_address:
            with storage_failures(Path(output)):
                if not place.has(MANIFEST):
                    require_own(Path(output))
            held.enter_context(only_writer(Path(output)))
        elif place.is_foreign((MANIFEST, PARTS)):
            raise UsageError(f"{output} exists and is not a corpus: choose another `output`")
        if place.has(MANIFEST):
            return _finished(request, place, output, given)
        return _make(request, place, given, runner, flags)


def request_of(
    sources: Sequence[str], output: str, options: dict[str, Any]
) -> tuple[Request, Tokenizer | None]:
    """Returns what `prepare` with these options is asked for, and the tokenizer, if it is given."""
    usual = inspect.signature(prepare).parameters
    known = [usual[name] for name in inspect.signature(asked).parameters if name in usual]
    defaults = {each.name: each.default for each in known if each.default is not each.empty}
    return asked(sources, output, **defaults | options)


def _require_for_many(request: Request, runner: str, output: str) -> None:
    """Raises UsageError for what other machines do not have, or a job does not do."""
    if request.near_duplicates is not None:  # workers are to have the same one
        require_rensa()
    if request.shows_dropped:
        raise UsageError("`show_dropped` shows text, which stays where it is read: leave it out")
    for source in (*request.sources, *request.held_out):
        if is_stdin(source) or is_here(source):
            raise UsageError(
                f"`source` {source} is of this machine alone: name files that all workers see, in "
                "a bucket, say"
            )
        if runner == _DATAFLOW and not is_address(source):
            raise UsageError(f"`source` {source}: Dataflow reads from addresses, such as gs://")
        folder = source.partition("**")[0].rstrip("/")
        if is_address(output) and f"{output.rstrip('/')}/".startswith(f"{folder}/"):
            raise UsageError(
                f"`output` {output} lies in the folder `source` {source}, and would itself be read "
                "as text; choose a place outside"
            )
    if is_address(output) and not output.startswith(("gs://", "s3://")):
        raise UsageError(
            f"`output` {output}: a job writes to a disk that all workers see, or to gs:// or s3://"
        )
    if runner == _DATAFLOW and not is_address(output):
        raise UsageError(f"`output` {output}: Dataflow writes to an address, such as gs://")


def _finished(
    request: Request, place: Shared, output: str, given: Tokenizer | None
) -> dict[str, Any]:
    """Returns the content of the corpus.json that is there, if it is of the corpus asked for."""
    try:
        manifest = strict_json.parse(place.read(MANIFEST))
        differences = differences_of(manifest, request, given)
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise DataDamaged(f"{output}/{MANIFEST} cannot be read: delete {output}") from error
    if differences:
        raise UsageError(
            f"{output} holds another corpus ({'; '.join(differences)}): choose another `output`, "
            "or delete it"
        )
    (place / PARTS).remove_all()
    note(f"{output} {finished(manifest)}: nothing to do; its sources were not read again")
    return manifest


def _make(
    request: Request, output: Shared, given: Tokenizer | None, runner: str, flags: Sequence[str]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        extras = _extras(request, output)
        pipeline, patience = _pipeline(runner, flags, extras, Path(folder))
        from bert_jax.data.cluster.graph import build  # of Beam, which is here

        for line in left_out(request.sources, request.held_out, request.tests):
            note(line)
        units = request.units(request.reading)
        job = Job(
            request=request,
            output=output,
            sample_bytes=SAMPLE_BYTES if given is None else LOOKED_AT_BYTES,
            ranges=max(1, min(_MOST_RANGES, len(units) // _UNITS_A_RANGE)),
            attempt=secrets.token_hex(8),
        )
        build(pipeline, job, units)
        if not output.is_address:  # in a bucket, nobody knows that no other command is at work
            for left in Path(job.folder.place).glob("try-*"):
                Shared(str(left)).remove_all()
        reports = Reports(job.scratch)
        if given is not None:
            stages.keep_tokenizer(job, given)
        try:
            _run(job, pipeline, reports, runner, len(units), patience)
        finally:  # pieces stay, and a tokenizer that was trained
            with contextlib.suppress(BertJaxError, OSError):
                job.scratch.remove_all()
    manifest = json.loads(output.read(MANIFEST))
    job.folder.remove_all()
    output.remove_unfinished()
    return manifest


def _pipeline(
    runner: str, flags: Sequence[str], extras: Sequence[str], folder: Path
) -> tuple[Any, float]:
    """Returns an empty pipeline with the runner's options, and the seconds after which workers
    without a sign of life are taken for dead.

    Workers in containers install this package with `extras`, which is written to a folder, unless
    the options of the runner say where they have it from.
    """
    try:
        import apache_beam as beam  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        package = "apache-beam[gcp]" if runner == _DATAFLOW else "apache-beam"
        raise UsageError(f"`runner` needs Apache Beam: {install_command(package)}") from error
    from apache_beam.options.pipeline_options import (  # pyright: ignore[reportMissingImports]
        PipelineOptions,
        PortableOptions,
    )

    # It logs each error of a stage with its traceback, which the stage reports as one line.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    named = _LOCAL if runner == _DIRECT else runner
    # What this process has in memory is nothing that a stage needs.
    usual: dict[str, Any] = {"runner": named, "save_main_session": False}
    options = PipelineOptions(flags)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            every = options.get_all_options(retain_unknown_options=True)
    except SystemExit as error:
        if not error.code:  # --help
            raise
        reason = said.getvalue().strip().rpartition("error: ")[2]
        raise UsageError(f"`runner` {runner}: {reason}") from error
    # Those of Flink and Spark may be known to their own programs alone.
    unknown = sorted(every.keys() - options.get_all_options().keys())
    if unknown and runner in (_DATAFLOW, _DIRECT):
        raise UsageError(f"`runner` {runner} has no option {', '.join(unknown)}")
    if other := every.get("runner"):
        raise UsageError(f"`runner` is {runner}, and {other} after --: name it once, before --")
    # Beam passes over a word that is neither an option nor the value of one.
    for before, word in itertools.pairwise(("", *flags)):
        if not word.startswith("-") and ("=" in before or not before.startswith("-")):
            raise UsageError(f"`runner` {runner}: {word!r} is no option: each begins with --")
    kind = options.view_as(PortableOptions).environment_type
    is_near = named == _LOCAL or kind in _WITHOUT_CONTAINERS
    if not is_near and not any(flag.lstrip("-").startswith(_WITH_PACKAGE) for flag in flags):
        usual["extra_packages"] = [str(write_wheel(folder, extras))]
    try:
        pipeline = beam.Pipeline(options=PipelineOptions(flags, **usual))
    except ValueError as error:  # of an option that is wrong, or missing
        reason = " ".join(str(error).split())
        raise UsageError(f"`runner` {runner}: {reason} (its options come after --)") from error
    except ImportError as error:
        raise UsageError(
            f"`runner` {runner} needs more of Apache Beam ({error}): "
            f"{install_command('apache-beam[gcp]', 'gcsfs')}"
        ) from error
    patience = _PATIENCE if is_near else _PATIENCE_OF_CONTAINERS
    return pipeline, math.inf if runner == _DATAFLOW else patience  # which looks after its own


def _run(
    job: Job, pipeline: Any, reports: Reports, runner: str, units: int, patience: float
) -> None:
    """Runs the job to its end. Raises BertJaxError where it fails, and cancels it where this
    process is to end.
    """
    running: list[Any] = []
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            running.append(pipeline.run())
            if (name := getattr(running[0], "job_id", None)) and runner == _DATAFLOW:
                note(f"job {name()}")
            running[0].wait_until_finish()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        _wait(job, reports, thread, units, patience)
    except BaseException:
        for job_there in running:  # or it would go on, and bill
            try:
                job_there.cancel()
            except Exception as error:
                note(f"the job could not be cancelled, and may go on: {error}")
        if runner == _DIRECT:
            _kill_workers()
        raise
    (error,) = ended
    if error is None:
        return
    if reported := error_of(job.scratch):
        raise reported
    job.folder.write(_FAILURE, f"{type(error).__name__}: {error}\n".encode())
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raise BertJaxError(
        f"{runner} failed: {lines[-1] if lines else type(error).__name__} ({job.folder}/{_FAILURE} "
        "has all of it); the same command goes on where it stopped"
    ) from error


def _kill_workers() -> None:
    """Kills the worker processes of this machine. The threads that wait for them say nothing."""
    shown = threading.excepthook

    def show(of: threading.ExceptHookArgs) -> None:
        if of.thread is None or of.thread.name != "run_worker":
            shown(of)

    threading.excepthook = show
    kill_descendants(_LOCAL.rpartition(".")[0].encode())


def _extras(request: Request, output: Shared) -> list[str]:
    """Returns the extras of bert-jax that workers need."""
    places = (*request.sources, *request.held_out, str(output))
    extras = [KINDS.get(place.partition(":")[0]) for place in places]
    extras += ["near-duplicates"] if request.near_duplicates is not None else []
    return sorted({extra for extra in extras if extra is not None})


def _wait(
    job: Job, reports: Reports, thread: threading.Thread, units: int, patience: float
) -> None:
    """Waits for the thread, and shows how far the job is. Raises BertJaxError where no worker gives
    a sign of life for so many seconds.
    """
    hope, heard = Hope(patience), time.monotonic()
    usual = seconds = _FAR if job.output.is_address else _NEAR
    with Progress("prepare", total=None) as progress:
        found = pieces = shards = 0
        progress.describe = lambda: (
            f"{found:,} of {units:,} units looked through, {pieces:,} pieces encoded, "
            f"{shards:,} shards"
        )
        while thread.is_alive():
            thread.join(seconds)
            began = time.monotonic()
            try:
                for line in reports.notes():
                    note(line)
                found = len((job.scratch / "found").names())
                pieces = len((job.folder / "pieces").names())
                shards = len((job.output / "train").names()) // 3
                signs = reports.alive()
            except (BertJaxError, OSError):
                # The job may be well, where this machine's network fails.
                if time.monotonic() - heard > _UNHEARD:
                    raise
                continue
            heard = time.monotonic()
            progress.advance(0)
            # In a bucket, many pieces take long to list.
            seconds = max(usual, 10 * (time.monotonic() - began))
            if who := hope.lost(time.monotonic(), signs, (found, pieces, shards)):
                raise BertJaxError(
                    f"{who} for more than {patience:.0f} s: see that they run, have bert-jax "
                    f"installed, and can write to {job.folder}; the same command goes on where "
                    "this one stopped"
                )
    for line in reports.notes():
        note(line)


class Hope:
    """Finds out when to wait no longer: some engines wait for ever for a worker that is gone."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._last: dict[str, tuple[Any, float]] = {}  # of each process, its last sign, and when
        self._seen: Any = None  # who was at work, and how far the job was
        self._news: float | None = None  # when that changed
        self._began = 0.0  # when a process was seen for the first time

    def lost(self, now: float, signs: Mapping[str, Any], far: Any) -> str | None:
        """Returns what to say where there is no hope; None while there is.

        `signs` are of the processes that are at work now, each with what a sign of life changes;
        `far` is how far the job is.
        """
        if signs.keys() - self._last.keys():
            self._began = now
        for name, sign in signs.items():
            if name not in self._last or self._last[name][0] != sign:
                self._last[name] = sign, now
        if self._news is None or (signs.keys(), far) != self._seen:
            self._seen, self._news = (signs.keys(), far), now
        if now - self._news <= self._patience:
            return None
        if not self._last:
            return "no worker has begun"
        silent = {name for name in signs if now - self._last[name][1] > self._patience}
        # One that another process came after was replaced.
        if any(self._last[name][1] >= self._began for name in silent):
            return "a worker at work has given no sign of life"
        if silent == signs.keys() and now - self._news > _IDLE * self._patience:
            return "no worker has been at work"
        return None
