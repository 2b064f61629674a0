"""The verb `pretrain`: its options, how it starts, and the table it ends with."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bert_jax import progress
from bert_jax.commands import convert
from bert_jax.commands.tables import table
from bert_jax.errors import Preempted, UsageError
from bert_jax.resolve import place

PRETRAIN = (
    "The same command resumes an interrupted run from its newest good checkpoint and ends with the "
    "same bits as an uninterrupted one."
)


def add_pretrain_options(parser: Any) -> None:
    parser.add_argument("--corpus", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--workdir", type=place, required=True, metavar="DIR", help="or gs://BUCKET/PATH"
    )
    parser.add_argument(
        "--init-from",
        type=place,
        metavar="CHECKPOINT",
        help="start a new run, with a fresh schedule, from the parameters of this checkpoint: a "
        "workdir, one step of it, a Hugging Face directory or a TF1 checkpoint",
    )
    convert.add_allow_missing_heads(parser, "begin with fresh heads where --init-from has none")
    parser.add_argument(
        "--resume-step",
        type=int,
        metavar="N",
        help="go back to step N of the workdir, once; what came after it moves to set_aside/",
    )
    parser.add_argument(
        "--allow-change",
        action="append",
        default=[],
        metavar="FIELD",
        help="go on although this field (such as optimizer.learning_rate, phases.0.steps, or "
        "corpus) differs from the workdir's; repeat for several",
    )
    processes = parser.add_argument_group(
        "several processes",
        "One run over several hosts: start the same command on each. SIGTERM to any of them makes "
        "all of them save and exit with 42.",
    )
    processes.add_argument(
        "--distributed",
        action="store_true",
        help="find the other processes through Cloud TPU, GKE or Slurm",
    )
    elsewhere = "elsewhere: where process 0 listens"
    processes.add_argument("--coordinator", metavar="HOST:PORT", help=elsewhere)
    processes.add_argument("--num-processes", type=int, metavar="N")
    processes.add_argument("--process-id", type=int, metavar="I", help="from 0 to N - 1")
    parser.add_argument(
        "--profile-steps",
        metavar="A:B",
        help="trace steps A to B into WORKDIR/profile, for TensorBoard or Perfetto",
    )


_NOTHING = "preempted before the first step; nothing to save"
# A process that was told to go waits for so long until it has met the others, to tell them.
_MEETING_SECONDS = 20.0


def run_pretrain(arguments: Any) -> None:
    started = time.monotonic()
    has_others = arguments.distributed or (arguments.num_processes or 1) > 1
    told = threading.Event()

    def leave(*_: Any) -> None:
        if has_others and not told.is_set():
            told.set()
            progress.say("bert-jax pretrain: preempted; leaves when all processes have met")
            last = threading.Timer(_MEETING_SECONDS, os._exit, (Preempted.exit_code,))
            last.daemon = True
            last.start()
            return
        # Not sys.exit: an import that is under way may catch what that raises.
        progress.say(f"bert-jax pretrain: {_NOTHING}")
        os._exit(Preempted.exit_code)

    # Before the heavy imports: until there is something to save, SIGTERM only ends the process.
    before = signal.signal(signal.SIGTERM, leave)
    try:
        _pretrain(arguments, started, told)
    finally:
        signal.signal(signal.SIGTERM, before)


def _pretrain(arguments: Any, started: float, told: threading.Event) -> None:
    from bert_jax import resolve

    resolved = resolve.load(arguments.config, arguments.overrides)
    profile = _step_range(arguments.profile_steps)
    from bert_jax.training import host_memory

    if host_memory.computes_on_cpu():
        host_memory.keep_freed_memory()
    from bert_jax.training import distributed

    connection = distributed.Connection(
        detect=arguments.distributed,
        coordinator=arguments.coordinator,
        num_processes=arguments.num_processes,
        process_id=arguments.process_id,
    ).validate()
    # In a thread: a signal is not heard by one who waits for the others in C++.
    with ThreadPoolExecutor(max_workers=1) as waiting:
        waiting.submit(connection.connect).result()
    if distributed.any_leaves(told.is_set()):
        distributed.disconnect()
        raise Preempted(_NOTHING)
    if not distributed.is_main():
        progress.silence()
    from bert_jax.training.pretrain import pretrain

    try:
        closing = pretrain(
            resolved,
            corpus_directory=arguments.corpus,
            workdir_path=arguments.workdir,
            init_from=arguments.init_from,
            allow_missing_heads=arguments.allow_missing_heads,
            profile_steps=profile,
            resume_step=arguments.resume_step,
            allowed_changes=arguments.allow_change,
            started=started,
        )
    except Preempted:
        distributed.disconnect()
        raise
    distributed.disconnect()
    if distributed.is_main():
        _print_closing(arguments.workdir, closing)


def _print_closing(workdir: Path | str, closing: dict[str, Any]) -> None:
    validation = closing["validation"]
    entropy = closing["unigram_entropy"]
    table(
        f"{workdir}, step {closing['step']:,}",
        ("held-out", "value", "for comparison"),
        [
            (
                "MLM loss",
                f"{validation['mlm_loss']:.3f} nats",
                f"{entropy:.3f}: the corpus's unigram entropy "
                f"({entropy - validation['mlm_loss']:+.3f} learned)",
            ),
            ("MLM accuracy", f"{validation['mlm_accuracy']:.3f}", ""),
            ("perplexity", f"{validation['perplexity']:.1f}", ""),
            ("NSP accuracy", f"{validation['nsp_accuracy']:.3f}", "0.5: guessing"),
            ("training speed", f"{closing['tokens_per_second']:,.0f} tokens/s", ""),
        ],
    )


def _step_range(text: str | None) -> range | None:
    if text is None:
        return None
    start, _, stop = text.partition(":")
    if not (start.isdigit() and stop.isdigit() and int(start) < int(stop)):
        raise UsageError(f"--profile-steps {text}: write it as A:B with A < B, such as 20:23")
    return range(int(start), int(stop))
