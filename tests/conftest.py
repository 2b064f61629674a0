"""Tests have eight fake CPU devices, of which a run takes two: nothing works on one device only."""

import asyncio
import gc
import importlib.metadata
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # as bert_jax/__main__.py does
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Where the optimiser of LLVM is off, as in `make test`, XLA's older code for loops compiles in half
# the time: a tiny train step in 2.0 instead of 4.6 s of a CPU. Later jaxlibs do not have it.
if "--xla_backend_optimization_level=0" in os.environ.get(
    "XLA_FLAGS", ""
) and importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] += (
        " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    )
# Many tests, and the processes they start, compile the same few programs: once is enough. Made by
# the process that began, and inherited by all others.
if "PYTEST_XDIST_WORKER" not in os.environ and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _CACHE = tempfile.mkdtemp(prefix="bert-jax-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE
    # Smaller programs are compiled sooner than stored: a tenth of the time of four files of tests.
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.03"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
else:
    _CACHE = None

import jax

jax.config.update("jax_num_cpu_devices", 8)

# The traces and programs that JAX keeps live as long as the process: with the thresholds of Python,
# looking for cycles among them takes a twentieth of the time.
gc.set_threshold(10_000, 20, 100)


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = os.environ.get("BERT_JAX_SHUFFLE")
    return None if not seed else f"files in the order of BERT_JAX_SHUFFLE={seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Applies BERT_JAX_SHUFFLE=SEED and BERT_JAX_EVERY=N.

    The first shuffles the files, and keeps the order of the tests in each. The second keeps every
    N-th test: a sample of each file (.ci/run).
    """
    if seed := os.environ.get("BERT_JAX_SHUFFLE"):
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)  # the same order in every xdist worker
        place = {path: number for number, path in enumerate(files)}
        items.sort(key=lambda item: place[item.path])
    every = int(os.environ.get("BERT_JAX_EVERY", "1"))
    if left_out := [item for number, item in enumerate(items) if number % every]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = items[::every]


# Threads that a library starts once for the life of a process, by the beginning of their names.
_OF_PROCESS = (
    "fsspecIO",  # the loop of fsspec; what it works at is looked at below
    "asyncio_",  # the pool in which that loop resolves the names of hosts
    "gcsfs-deferred-close",  # the queue of gcsfs for files that are dropped while they are open
    "tqdm_monitor",  # refreshes the progress bars of torch's libraries in the parity tests
)
# Seconds in which a thread that was told to end has to end.
_ENDING_SECONDS = 10.0


def _at_work(before: set[threading.Thread]) -> list[str]:
    """Returns the threads that began after `before`, and the tasks of the loop of fsspec."""
    found = [
        f"thread {thread.name} ({getattr(thread, '_target', None)})"
        for thread in threading.enumerate()
        if thread not in before and not thread.name.startswith(_OF_PROCESS)
    ]
    fsspec_asyn = sys.modules.get("fsspec.asyn")
    loop = None if fsspec_asyn is None else fsspec_asyn.loop[0]
    return found + ([] if loop is None else [f"task {task}" for task in asyncio.all_tasks(loop)])


@pytest.fixture(autouse=True)
def no_thread_left():
    """Fails a test that leaves a thread, or a request to a bucket that is under way.

    Both act on later tests: a request that is repeated draws from the global `random`, for example,
    whose state Hypothesis watches. Threads of fixtures of a wider scope are there before a test.
    """
    before = {*threading.enumerate()}
    yield
    until = time.monotonic() + _ENDING_SECONDS
    while (left := _at_work(before)) and time.monotonic() < until:
        time.sleep(0.01)
    if left:
        pytest.fail(f"left behind: {'; '.join(left)}", pytrace=False)


@pytest.fixture(autouse=True)
def messages():
    """Shows the messages of the library on stderr, in its own words unless `main` is called.

    What a process says once, it says once in each test.
    """
    from bert_jax import progress
    from bert_jax.cli import output

    output.show_messages({})
    progress.note_once.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def two_devices():
    """A run's default mesh has two devices: a step of a tiny model takes half the time of eight.

    What is about meshes names its own (`tests.batches.mesh_of`), or asks for `eight_devices`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: jax.local_devices()[:2])
        patch.setattr(jax, "device_count", lambda: 2)
        yield


@pytest.fixture
def eight_devices(two_devices, monkeypatch):
    """A run's default mesh has all of them."""
    monkeypatch.setattr(jax, "devices", jax.local_devices)
    monkeypatch.setattr(jax, "device_count", jax.local_device_count)


@pytest.fixture
def our_messages(caplog) -> Callable[[], list[str]]:
    """Returns the library's own messages so far, from INFO on.

    Another library, which an earlier test began to use, may still speak from a thread of its own.
    """
    caplog.set_level("INFO", logger="bert_jax")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "bert_jax"]


@pytest.fixture(scope="session", autouse=True)
def compiled_once():
    from tests.compiled_once import CompiledOnce

    with pytest.MonkeyPatch.context() as patch:
        programs = CompiledOnce()
        programs.install(patch)
        yield programs


# A quarter of the memory mappings that Linux allows a process (vm.max_map_count is 65,530).
_MOST_MAPPINGS = 16_000


@pytest.fixture(scope="module", autouse=True)
def few_mappings(compiled_once):
    """Drops the compiled programs before the process has too many memory mappings.

    XLA maps the code of each program in many pieces: a function of four lines took 74 mappings with
    jaxlib 0.12, and 21 where it was loaded from the compilation cache. Where Linux allows no more,
    jaxlib 0.12 writes "LLVM compilation error: Cannot allocate memory" (execution_engine.cc) and
    uses the code that is not there: a segmentation fault in `deserialize_executable`.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > _MOST_MAPPINGS:
        compiled_once.forget()
        jax.clear_caches()
        gc.collect()


def pytest_unconfigure():
    if _CACHE is not None:
        shutil.rmtree(_CACHE, ignore_errors=True)


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Makes the directory of a name once for all of pytest's workers, which only read it."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make(name: str, fill: Callable[[Path], None]) -> Path:
        directory, finished = root / name, root / f"{name}.finished"
        with FileLock(root / f"{name}.lock"):
            if not finished.exists():
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir()
                fill(directory)
                finished.touch()
        return directory

    return make


@pytest.fixture(scope="session")
def corpus(shared) -> Path:
    """A corpus directory of the tiny stories."""
    from bert_jax.data.corpus.prepare import prepare
    from tests import tiny_corpus

    def fill(directory: Path) -> None:
        source = tiny_corpus.write(directory / "stories.txt")
        prepare(
            [str(source)], directory / "tokens", vocab_size=240, validation_fraction=0.2, workers=1
        )

    return shared("corpus", fill) / "tokens"


@pytest.fixture(scope="session")
def trained(shared, corpus) -> Path:
    """The workdir of a finished run of `tiny_config` on it, by the command line."""
    from bert_jax.__main__ import main
    from tests import tiny_corpus

    def fill(directory: Path) -> None:
        config = tiny_corpus.write_config(directory / "tiny.json", tiny_corpus.tiny_config())
        command = ["pretrain", str(config), "--corpus", str(corpus)]
        assert main([*command, "--workdir", str(directory / "workdir")]) == 0

    return shared("trained", fill) / "workdir"


@pytest.fixture(scope="session")
def exported(shared, trained) -> Path:
    """The Hugging Face directory made from that run."""
    from bert_jax.__main__ import main

    def fill(directory: Path) -> None:
        command = ["export", str(trained), "--output-dir", str(directory / "hf")]
        assert main(command) == 0

    return shared("exported", fill) / "hf"


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium; the test is skipped where none is installed."""
    from tests.browser import chromium, executable

    if executable() is None:
        pytest.skip("no Chromium is installed: apt-get install chromium, or name one in CHROMIUM")
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def pictures() -> Path:
    """A directory for screenshots, which is kept, and printed: that of PICTURES, or a new one."""
    named = os.environ.get("PICTURES")
    directory = Path(named or tempfile.mkdtemp(prefix="bert-jax-pictures-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"\nscreenshots: {directory}")
    return directory
