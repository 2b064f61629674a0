"""Measures the cost of reliability: host calls per step, skipped updates, a save, a restart.

    python benchmarks/reliability_cost.py [calls|choice|save|restart] ...

`calls`    the calls of a training step to watchdog, preemption, step timer and metrics log with
           TensorBoard, without training; as a share of a step of 100 ms
`choice`   the train step compared with a step that cannot skip a non-finite update; both compiled
           twice, interleaved; the median of their differences
`save`     BERT-Base with its moments, saved to disk during training: how long `save` blocks the
           loop, and how long until the step is complete with manifest and checksums
`restart`  a tiny run is killed with SIGKILL and restarted with a warm compilation cache: from the
           kill to the first new row, including imports
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path

from bert_jax.runtime import host_allocator

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

STEP_SECONDS = 0.1
ROUNDS = 7


def calls() -> None:
    from bert_jax.progress import Progress
    from bert_jax.runtime.stop import Preemption
    from bert_jax.runtime.watchdog import Watchdog
    from bert_jax.training.job import Run, TrainingJob
    from bert_jax.training.step_log import StepLog
    from bert_jax.workdir import metrics_log

    ready: Future[None] = Future()
    ready.set_result(None)
    values = {f"value_{n}": 0.1 * n for n in range(12)}
    count = 3000
    with tempfile.TemporaryDirectory() as directory, Watchdog(900.0) as watchdog:
        journal = metrics_log.MetricsLogger(Path(directory))
        bar = Progress("steps", total=None, hidden=True)
        clock = StepLog(
            Run(job=TrainingJob(), directory=Path(directory), logger=journal, bar=bar), []
        )
        clock.restart()
        journal.open_curves([])
        with Preemption() as preemption:
            began = time.perf_counter()
            for step in range(count):
                watchdog.at(f"waiting for the data of step {step}")
                with clock.waiting():
                    preemption.wait(ready)
                watchdog.at(f"step {step}")
                preemption.requested()
                journal.row(step=step, **values)
            seconds = (time.perf_counter() - began) / count
        journal.close()
    print(f"calls: {seconds * 1e6:.0f} us per step, {seconds / STEP_SECONDS:.2%} of a 100 ms step")


def _trainer(rows: int, *, hidden: int, layers: int, choice: bool = True):
    """Returns the state, a batch and the compiled step of a BERT on one device."""
    import jax
    import jax.numpy as jnp

    from bert_jax.config import ComputeConfig, ModelConfig, PhaseConfig, TrainConfig
    from bert_jax.model import sharding
    from bert_jax.objectives.mlm_nsp import MLM_NSP
    from bert_jax.update.state import TrainState
    from bert_jax.update.step import compile_lowered, lower_train_step
    from tests.batches import random_batch

    config = TrainConfig(
        model=ModelConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 64,
            intermediate_size=4 * hidden,
        ),
        compute=ComputeConfig(dtype="float32"),
        phases=(
            PhaseConfig(
                sequence_length=128, global_batch_size=rows, max_predictions=20, steps=1_000_000
            ),
        ),
    )
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    jax.set_mesh(mesh)
    state = TrainState.create(config).to_mesh(mesh)
    batch = random_batch(rows=rows, length=128, predictions=20, vocab_size=config.model.vocab_size)
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    isfinite = jnp.isfinite
    if not choice:  # the choice of the new state is constant, so the compiler removes it
        jnp.isfinite = lambda x: jnp.ones_like(x, bool)  # type: ignore[assignment]
    try:
        step = compile_lowered(lower_train_step(config, state, batch, objective=MLM_NSP))
    finally:
        jnp.isfinite = isfinite
    return state, batch, step


def choice() -> None:
    import jax

    host_allocator.keep_freed_memory()  # as in `pretrain`
    # Each side is compiled twice: differences between equal programs are noise.
    names = ("with", "without", "with, again", "without, again")
    sides = {
        name: list(_trainer(4, hidden=256, layers=4, choice="without" not in name))
        for name in names
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS * 8):
        for name, side in sides.items():
            state, batch, step = side
            began = time.perf_counter()
            for _ in range(4):
                state, values = step(state, batch)
            jax.block_until_ready((state, values))
            seconds[name].append((time.perf_counter() - began) / 4)
            side[0] = state
    for name, times in seconds.items():
        print(f"choice: {1e3 * statistics.median(times):.1f} ms per step {name}")
    rounds = list(zip(*seconds.values(), strict=True))[1:]
    more = statistics.median((a + c - b - d) / 2 for a, b, c, d in rounds)
    print(f"choice: {1e3 * more:+.2f} ms per step, the median of {len(rounds)} rounds")


def save() -> None:
    import jax

    from bert_jax.config import CheckpointConfig
    from bert_jax.workdir.checkpoint import Checkpoints

    state, batch, step = _trainer(2, hidden=768, layers=12)
    done: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        checkpoints = Checkpoints(
            Path(directory), CheckpointConfig(keep_last=1), on_saved=done.__setitem__
        )
        stalls, during, before = [], [], []
        for number in range(1, 4):
            for times in (before, during):
                for _ in range(2):
                    began = time.perf_counter()
                    state, values = step(state, batch)
                    jax.block_until_ready((state, values))
                    times.append(time.perf_counter() - began)
                if times is before:
                    began = time.perf_counter()
                    checkpoints.save(state, step=number)
                    stalls.append(time.perf_counter() - began)
            checkpoints.wait()
        checkpoints.close()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e9
    print(
        f"save: {size:.2f} GB; the loop was blocked for {', '.join(f'{s:.2f}' for s in stalls)} s; "
        f"complete after {', '.join(f'{s:.1f}' for s in done.values())} s; "
        f"a step {statistics.median(before):.2f} s before and {statistics.median(during):.2f} s "
        "during the save"
    )


def restart() -> None:
    from bert_jax.data.corpus.prepare import prepare
    from tests import tiny_corpus

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        stories = tiny_corpus.write(place / "stories.txt")
        prepare([str(stories)], place / "corpus", vocab_size=240, validation_fraction=0.2)
        config = tiny_corpus.write_config(place / "tiny.json", tiny_corpus.tiny_config())
        command = [sys.executable, "-m", "bert_jax", "pretrain", str(config)]
        command += ["--corpus", str(place / "corpus"), "--workdir", str(place / "workdir")]
        command += ["--set", "phases.0.steps=100000", "--set", "log_every_steps=1"]
        command += ["--set", "evaluation.every_steps=100000"]
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(place / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        metrics_log = place / "workdir" / "metrics.jsonl"
        events = place / "workdir" / "events.jsonl"
        seconds: list[float] = []
        killed_at = None
        while len(seconds) < 3:
            began, saves = time.time(), _count(events, '"event": "save"')
            with (place / "log").open("ab") as log:
                run = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT)
            while _last_row_at(metrics_log) < began:
                if run.poll() is not None:
                    sys.exit((place / "log").read_text())
                time.sleep(0.02)
            if killed_at is not None:
                seconds.append(time.time() - killed_at)
            while _count(events, '"event": "save"') == saves:
                time.sleep(0.02)
            killed_at = time.time()
            run.kill()
            run.wait()
    print(f"restart: {', '.join(f'{s:.1f}' for s in seconds)} s from SIGKILL to the first new row")


def _count(path: Path, text: str) -> int:
    return path.read_text().count(text) if path.exists() else 0


def _last_row_at(path: Path) -> float:
    """Returns the time of the last complete row in seconds since the epoch; 0 without rows."""
    text = path.read_text() if path.exists() else ""
    rows = text[: text.rfind("\n") + 1].splitlines()
    return json.loads(rows[-1]).get("time", 0.0) if rows else 0.0


def main() -> None:
    parts = {"calls": calls, "choice": choice, "save": save, "restart": restart}
    chosen = sys.argv[1:] or list(parts)
    if unknown := set(chosen) - set(parts):
        sys.exit(f"{', '.join(unknown)}: choose from {', '.join(parts)}")
    if len(chosen) == 1:
        parts[chosen[0]]()
        return
    for name in chosen:  # each in a separate process
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
