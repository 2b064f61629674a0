"""The command that makes a corpus with Apache Beam: starts the job and waits for it."""

import contextlib
import functools
import io
import itertools
import logging
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.cluster.package import write_wheel
from bert_jax.data.cluster.reports import error_of, new_notes
from bert_jax.data.corpus.folder import Folder
from bert_jax.data.corpus.job import Job, Unit
from bert_jax.data.corpus.options import CorpusOptions
from bert_jax.data.corpus.pipeline import build
from bert_jax.data.corpus.prepare import make
from bert_jax.data.sources.address import KINDS, is_address
from bert_jax.errors import BertJaxError, UsageError, install_command
from bert_jax.progress import Progress, note

# The seconds for which the job's folder may be unreachable from this machine.
_UNHEARD = 900.0
_WITHOUT_CONTAINERS = ("EXTERNAL", "PROCESS", "LOOPBACK")
# The seconds between two checks of a job on disk, and in a bucket.
_NEAR, _FAR = 0.5, 5.0
# The class that runs `DirectRunner`: Beam would download another program for it.
_DIRECT = "DirectRunner"
_LOCAL = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_DATAFLOW = "DataflowRunner"
_RUNNERS = (_DIRECT, _DATAFLOW, "FlinkRunner", "SparkRunner", "PortableRunner")
_FAILURE = "failure.txt"
# Options of a runner that name the package from which workers install bert-jax.
_WITH_PACKAGE = ("extra_package", "requirements_file", "sdk_container_image", "setup_file")


def prepare_on(
    runner: str, flags: Sequence[str], source: Sequence[str], output: str, **options: Any
) -> dict[str, Any]:
    """Makes a corpus as `prepare` does, with a Beam runner and its options `flags`.

    `output` may be an address. Returns the content of corpus.json. Raises the exceptions of
    `prepare`, UsageError for options, sources and outputs that only one machine can access, and
    BertJaxError if the job fails.
    """
    chosen = CorpusOptions(source=source, **options)  # type: ignore[arg-type]
    # Beam accepts names in any case, and without the suffix.
    short = {name.lower().removesuffix("runner"): name for name in _RUNNERS}
    runner = short.get(runner.lower().removesuffix("runner"), runner)
    _require_for_many(chosen, runner, output)
    # A worker may have started in another folder.
    place = Folder(output if is_address(output) else str(Path(output).absolute()))
    with tempfile.TemporaryDirectory() as folder:
        return make(
            chosen,
            place,
            lambda: functools.partial(
                _run, runner, pipeline_of(runner, flags, extras_of(chosen, place), Path(folder))
            ),
        )


def _require_for_many(options: CorpusOptions, runner: str, output: str) -> None:
    """Raises UsageError for sources and outputs that other machines cannot access."""
    for source in (*options.source, *options.validation_source):
        if source == "docs:":
            raise UsageError(
                f"`source` {source} is only on this machine: name files that all workers can read, "
                "for example in a bucket"
            )
        if runner == _DATAFLOW and not is_address(source):
            raise UsageError(f"`source` {source}: Dataflow reads from addresses, such as gs://")
    if is_address(output) and not output.startswith(("gs://", "s3://")):
        raise UsageError(
            f"`output` {output}: name a folder that all workers can write, or gs:// or s3://"
        )
    if runner == _DATAFLOW and not is_address(output):
        raise UsageError(f"`output` {output}: Dataflow writes to an address, such as gs://")


def _run(runner: str, pipeline: Any, job: Job, units: list[Unit]) -> None:
    """Runs a job to its end. Raises BertJaxError if it fails, and cancels it if this process ends
    first.
    """
    from bert_jax.data.cluster.beam import BeamEngine  # Beam is installed

    build(BeamEngine(job, pipeline), job, units)
    running: list[Any] = []
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            running.append(pipeline.run())
            name = getattr(running[0], "job_id", None)
            if name is not None and runner == _DATAFLOW:
                note(f"job {name()}")
            running[0].wait_until_finish()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        _wait(job, thread, len(units))
    except BaseException:
        for job_there in running:  # it would continue, and cost money
            try:
                job_there.cancel()
            except Exception as error:
                note(f"the job could not be cancelled, and may still run: {error}")
        raise
    (error,) = ended
    if error is None:
        return
    if (reported := error_of(job.scratch)) is not None:
        raise reported
    job.folder.write(_FAILURE, f"{type(error).__name__}: {error}\n".encode())
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raise BertJaxError(
        f"{runner} failed: {lines[-1] if lines else type(error).__name__} "
        f"(full message: {job.folder}/{_FAILURE}); run the same command to resume"
    ) from error


def pipeline_of(runner: str, flags: Sequence[str], extras: Sequence[str], folder: Path) -> Any:
    """Returns an empty pipeline with the runner's options.

    Workers in containers install this package with `extras` from `folder`, unless the options of
    the runner name another package. Raises UsageError for invalid options.
    """
    try:
        import apache_beam as beam  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        package = "apache-beam[gcp]" if runner == _DATAFLOW else "apache-beam"
        raise UsageError(f"`runner` needs Apache Beam: {install_command(package)}") from error
    from apache_beam.options.pipeline_options import (  # pyright: ignore[reportMissingImports]
        DirectOptions,
        PipelineOptions,
        PortableOptions,
    )

    # Beam logs each error of a stage with its traceback; the stage reports it as one line.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    named = _LOCAL if runner == _DIRECT else runner
    # Stages do not need the memory of this process.
    usual: dict[str, Any] = {"runner": named, "save_main_session": False}
    options = PipelineOptions(flags)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as message:
            every = options.get_all_options(retain_unknown_options=True)
    except SystemExit as error:
        if not error.code:  # --help
            raise
        reason = message.getvalue().strip().rpartition("error: ")[2]
        raise UsageError(f"`runner` {runner}: {reason}") from error
    mode = options.view_as(DirectOptions).direct_running_mode
    if runner == _DIRECT and mode == "multi_processing":  # Ctrl-C would not end its processes
        raise UsageError(
            f"`runner` {runner} runs in this process, not in direct_running_mode {mode}"
        )
    # Only the programs of Flink and Spark know some of their options.
    unknown = sorted(every.keys() - options.get_all_options().keys())
    if unknown and runner in (_DATAFLOW, _DIRECT):
        raise UsageError(f"`runner` {runner} has no option {', '.join(unknown)}")
    # Beam ignores a word that is neither an option nor the value of an option.
    for before, word in itertools.pairwise(("", *flags)):
        if not word.startswith("-") and ("=" in before or not before.startswith("-")):
            raise UsageError(f"`runner` {runner}: {word!r} is not an option: options begin with --")
    kind = options.view_as(PortableOptions).environment_type
    is_near = named == _LOCAL or kind in _WITHOUT_CONTAINERS
    if not is_near and not any(flag.lstrip("-").startswith(_WITH_PACKAGE) for flag in flags):
        usual["extra_packages"] = [str(write_wheel(folder, extras))]
    try:
        return beam.Pipeline(options=PipelineOptions(flags, **usual))
    except ValueError as error:  # an option is invalid or missing
        reason = " ".join(str(error).split())
        raise UsageError(f"`runner` {runner}: {reason} (its options come after --)") from error
    except ImportError as error:
        raise UsageError(
            f"`runner` {runner} needs more Apache Beam packages ({error}): "
            f"{install_command('apache-beam[gcp]', 'gcsfs')}"
        ) from error


def extras_of(options: CorpusOptions, output: Folder) -> list[str]:
    """Returns the extras of bert-jax that workers need."""
    places = (*options.source, *options.validation_source, str(output))
    extras = [KINDS.get(place.partition(":")[0]) for place in places]
    extras += ["near-duplicates"] if options.dedup_threshold is not None else []
    return sorted({extra for extra in extras if extra is not None})


def _wait(job: Job, thread: threading.Thread, units: int) -> None:
    """Waits for the thread, and shows the notes and the progress of the job."""
    usual = seconds = _FAR if job.output.is_address else _NEAR
    heard, seen = time.monotonic(), set[str]()
    with Progress("prepare", total=None) as progress:
        found = pieces = shards = 0
        progress.describe = lambda: (
            f"{found:,} of {units:,} units read, {pieces:,} pieces encoded, {shards:,} shards"
        )
        while thread.is_alive():
            thread.join(seconds)
            began = time.monotonic()
            try:
                for line in new_notes(job.scratch, seen):
                    note(line)
                found = len((job.scratch / "found").names())
                pieces = len(job.pieces.names())
                shards = len((job.output / "train").names()) // 3
            except (BertJaxError, OSError):
                # The job may be running normally while this machine's network fails.
                if time.monotonic() - heard > _UNHEARD:
                    raise
                continue
            heard = time.monotonic()
            progress.advance(0)
            # Listing many pieces in a bucket is slow.
            seconds = max(usual, 10 * (time.monotonic() - began))
    for line in new_notes(job.scratch, seen):
        note(line)
