"""Jobs of Apache Beam in local processes (`make beam`), in an environment with the packages of a
worker.
"""

import base64
import binascii
import bz2
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_jax.data.cluster import run
from bert_jax.data.corpus.folder import Folder
from bert_jax.data.corpus.job import Job
from bert_jax.data.corpus.options import CorpusOptions
from bert_jax.data.corpus.pipeline import build
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.matching.contamination import Contamination
from bert_jax.errors import UsageError
from tests.data.corpus.test_prepare import files_of, text_of
from tests.limits import HUNG
from tests.paths import ROOT

pytest.importorskip("apache_beam")
pytestmark = pytest.mark.beam

THREADS = ("--direct_running_mode=multi_threading", "--direct_num_workers=4")
STAGES = ("look.look", "encode.encode", "shards.write")
# Small parts, shards and units in all processes.
SMALL = {"PART_BYTES": 6000, "SHARD_TOKENS": 6000, "UNIT_BYTES": 12_000}
# The first lines of every Python process of a job. The first worker that begins a stage stops.
BEGINNING = f"""
import functools, importlib, os, sys, time
from bert_jax.data.corpus import job
{"; ".join(f"job.{name} = {value}" for name, value in SMALL.items())}
stage, marker = os.environ.get("FAULT_STAGE"), os.environ.get("FAULT_MARKER")
if stage and "--runner" in sys.orig_argv:
    module, name = stage.split(".")
    module = importlib.import_module("bert_jax.data.corpus." + module)
    real = getattr(module, name)
    @functools.wraps(real)
    def stops(*arguments):
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return real(*arguments)
        time.sleep(1000)
    setattr(module, name, stops)
# A job service gives each job one worker, whatever is asked of it; here as many as a test says.
if workers := os.environ.get("SERVICE_WORKERS"):
    words = " ".join(sys.orig_argv)
    if "SdkHarness" in words:
        open(os.path.join(os.environ["SERVICE_BEGAN"], str(os.getpid())), "w").close()
    if "local_job_service_main" in words:
        from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
        begin = FnApiRunner.__init__
        def begins(self, *arguments, **named):
            begin(self, *arguments, **named)
            self._num_workers = int(workers)
        FnApiRunner.__init__ = begins
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("text")
    for number in range(3):
        (folder / f"{number}.txt").write_text(text_of(200, seed=number) + "\n\n" + text_of(40))
    return [str(folder)]


OPTIONS = {"vocab_size": 140, "validation_fraction": 0.05}


@pytest.fixture(scope="module")
def here(tmp_path_factory, sources) -> Path:
    output = tmp_path_factory.mktemp("here") / "corpus"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(f"bert_jax.data.corpus.job.{name}", value)
        corpus = prepare(sources, output, workers=1, **OPTIONS)
    assert len(corpus.train.shards) > 2
    return output


@pytest.fixture(scope="module")
def beginning(tmp_path_factory) -> dict[str, str]:
    """Returns the environment of the processes of a job."""
    folder = tmp_path_factory.mktemp("beginning")
    (folder / "sitecustomize.py").write_text(BEGINNING)
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        **os.environ,
        "PATH": os.pathsep.join(path),  # a pool begins `python`
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
    }


def is_equal(output: Path, here: Path) -> bool:
    return files_of(output) == files_of(here)


def command(
    sources: list[str],
    output: Path,
    runner: str,
    *flags: str,
    environment: dict[str, str],
    options: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "bert_jax", "prepare", "--runner", runner]
    words += [word for source in sources for word in ("--source", source)]
    words += ["--output-dir", str(output)]
    words += ["--vocab-size", "140", "--validation-fraction", "0.05", *options, "--", *flags]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=HUNG)


@pytest.mark.parametrize("flags", [(), THREADS], ids=["one thread", "four threads"])
def test_beam_makes_the_bytes_of_one_machine(tmp_path, sources, here, beginning, flags):
    done = command(sources, tmp_path / "c", "DirectRunner", *flags, environment=beginning)
    assert done.returncode == 0, done.stderr
    assert is_equal(tmp_path / "c", here)
    assert done.stderr.count("train wordpiece on") == 1 and "Traceback" not in done.stderr


def test_near_duplicates_are_those_of_one_machine(tmp_path, sources, beginning, monkeypatch):
    pytest.importorskip("rensa")
    for name, value in SMALL.items():
        monkeypatch.setattr(f"bert_jax.data.corpus.job.{name}", value)
    texts = text_of(200).split("\n\n")
    (tmp_path / "edited.txt").write_text(
        "\n\n".join(f"{text} edit{number}" for number, text in enumerate(texts))
    )
    sources = [*sources, str(tmp_path / "edited.txt")]
    here = prepare(sources, tmp_path / "here", workers=1, dedup_threshold=0.7, **OPTIONS)
    assert sum(here.manifest["near_duplicate_documents"].values()) > 20
    done = command(
        sources, tmp_path / "c", "DirectRunner", *THREADS,
        environment=beginning, options=("--dedup-threshold", "0.7"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert is_equal(tmp_path / "c", tmp_path / "here")


@pytest.mark.parametrize("stage", STAGES)
def test_an_interrupted_job_resumes(tmp_path, sources, here, beginning, stage):
    """The same command makes the corpus, and keeps the encoded pieces."""
    output, marker = tmp_path / "c", tmp_path / "marker"
    fault = {"FAULT_STAGE": stage, "FAULT_MARKER": str(marker)}
    with begun(sources, output, environment=beginning | fault) as process:
        waited_for(marker.exists)
        os.killpg(process.pid, signal.SIGKILL)
    if stage.startswith("shards."):
        assert len([*(output / ".parts/pieces").iterdir()]) > 10
        # A worker that encodes a piece again waits for a thousand seconds.
        beginning = beginning | {
            "FAULT_STAGE": "encode.encode_piece", "FAULT_MARKER": f"{marker}2"
        }  # fmt: skip
    again = command(sources, output, "DirectRunner", *THREADS, environment=beginning)
    assert again.returncode == 0, again.stderr
    assert is_equal(output, here)


def test_a_stage_error_is_one_line(tmp_path, sources, beginning):
    (tmp_path / "bad.jsonl").write_text("{broken\n")
    sources = [*sources, str(tmp_path / "bad.jsonl")]
    done = command(sources, tmp_path / "c", "DirectRunner", environment=beginning)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "bad.jsonl, line 1 is not JSON" in done.stderr.splitlines()[-1]


def heard() -> None:
    """Background processes of a shell ignore SIGINT; processes under nohup ignore SIGHUP."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def begun(
    sources: list[str], output: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Yields a job that runs."""
    words = [sys.executable, "-m", "bert_jax", "prepare", "--runner", "DirectRunner"]
    words += [word for source in sources for word in ("--source", source)]
    words += ["--output-dir", str(output), "--vocab-size", "140", "--validation-fraction", "0.05"]
    with subprocess.Popen(
        [*words, "--", *THREADS],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heard,
    ) as process:
        yield process


def waited_for(is_true: Callable[[], object]) -> None:
    until = time.monotonic() + HUNG
    while not is_true() and time.monotonic() < until:
        time.sleep(0.02)
    assert is_true()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 42)])
def test_a_signal_ends_the_command(tmp_path, sources, beginning, number, code):
    """Ctrl-C, or a closed terminal: all processes receive the signal."""
    with begun(sources, tmp_path / "c", beginning) as process:
        waited_for(lambda: [*tmp_path.glob("c/.parts/try-*/found/*")])
        os.killpg(process.pid, number)
        _, error = process.communicate(timeout=HUNG)
    assert process.returncode == code and "Traceback" not in error


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


@pytest.fixture
def service(beginning, tmp_path) -> Iterator[tuple[str, ...]]:
    """Yields the options of a job service and of a pool of workers, processes of their own."""
    (tmp_path / "began").mkdir()  # for a file of each worker
    asked = {"SERVICE_WORKERS": "2", "SERVICE_BEGAN": str(tmp_path / "began")}
    jobs, pool = free_port(), free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-m", f"apache_beam.runners.{name}", flag, str(port)],
            env=beginning | asked,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for name, flag, port in (
            ("portability.local_job_service_main", "-p", jobs),
            ("worker.worker_pool_main", "--service_port", pool),
        )
    ]
    try:
        for port in (jobs, pool):
            until = time.monotonic() + HUNG
            while time.monotonic() < until:
                with socket.socket() as asked:
                    if asked.connect_ex(("localhost", port)) == 0:
                        break
                time.sleep(0.1)
        yield (f"--job_endpoint=localhost:{jobs}", "--environment_type=EXTERNAL",
               f"--environment_config=localhost:{pool}")  # fmt: skip
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_job_service_and_a_pool_of_workers(tmp_path, sources, here, beginning, service):
    done = command(sources, tmp_path / "c", "PortableRunner", *service, environment=beginning)
    assert done.returncode == 0, done.stderr
    assert is_equal(tmp_path / "c", here)
    assert len([*(tmp_path / "began").iterdir()]) == 2


def test_the_options_of_a_runner_come_before_the_sources(tmp_path):
    for flags, message in (
        (("--no_such_option=1",), "`runner` DirectRunner has no option no_such_option"),
        (("direct_num_workers", "2"), "DirectRunner: 'direct_num_workers' is not an option"),
        (("--direct_num_workers", "2", "4"), "DirectRunner: '4' is not an option"),
        (("--direct_num_workers", "two"), "^`runner` DirectRunner: argument --direct_num_workers"),
        (("--direct_running_mode=multi_processing",), "DirectRunner runs in this process"),
        ((), "none.txt: no such file"),
    ):
        with pytest.raises(UsageError, match=message):
            run.prepare_on("directRunner", flags, ["none.txt"], str(tmp_path / "c"), **OPTIONS)
        assert not (tmp_path / "c").exists()


# --- Dataflow -------------------------------------------------------------------------------------


def test_the_description_of_a_dataflow_job(tmp_path, sources):
    """It has no text."""
    pytest.importorskip("google.cloud.storage")
    pytest.importorskip("apache_beam.runners.dataflow.internal.apiclient")
    from bert_jax.data.cluster.beam import BeamEngine

    tests = tmp_path / "tests.txt"
    tests.write_text(text_of(5, seed=7))
    options = CorpusOptions(
        source=sources, decontaminate=[str(tests)], dedup_threshold=0.8, **OPTIONS
    )  # type: ignore[arg-type]
    reading = options.reading(outside=None)
    job, units = Job(
        options=options, output=Folder("gs://bucket/corpus"), described={}, by_character=False,
        contamination=Contamination(options.decontaminate, reading),
    ).cut(reading)  # fmt: skip
    flags = ("--project=some-project", "--region=europe-west4", "--temp_location=gs://bucket/tmp",
             "--dry_run=True", "--no_auth")  # fmt: skip
    extras = run.extras_of(options, job.output)
    pipeline = run.pipeline_of("DataflowRunner", flags, extras, tmp_path)
    build(BeamEngine(job, pipeline), job, units)
    proto = pipeline.run().job.proto_pipeline

    transforms = proto.components.transforms.values()
    payloads = [each.spec.payload for each in transforms]
    assert sum(map(len, payloads)) < 300_000
    functions = [each for payload in payloads for each in unpacked(payload)]
    assert sum(b"bert_jax.data.cluster" in each for each in functions) > 10
    for payload in [*payloads, *functions]:
        for word in (b"hears", b"likes", b"river"):
            assert word not in payload
    (environment,) = proto.components.environments.values()
    staged = [dependency.type_payload for dependency in environment.dependencies]
    assert any(re.search(rb"bert_jax-.*\.whl", each) for each in staged)
    assert not any(b"main_session" in each for each in staged)


def unpacked(payload: bytes) -> Iterator[bytes]:
    """Yields the pickled functions of a step."""
    for packed in re.findall(rb"[A-Za-z0-9+/]{40,}=*", payload):
        for unpack in (zlib.decompress, bz2.decompress):
            with contextlib.suppress(binascii.Error, OSError, ValueError, zlib.error):
                yield unpack(base64.b64decode(packed))
