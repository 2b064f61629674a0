"""The verbs `checkpoints` and `report`: what a workdir holds, and where its time went."""

import json
from pathlib import Path
from typing import Any

from bert_jax.commands.tables import table
from bert_jax.errors import NoUsableCheckpoint, UsageError
from bert_jax.resolve import place

CHECKPOINTS = (
    "'list' shows the steps; 'verify' reads every byte and compares it with the manifests (exit "
    "code 5 if one differs); 'prune' removes all but the newest; 'rollback' moves what came after "
    "a step to set_aside/, so that pretrain goes on from there. No trainer may be at work on it."
)
REPORT = (
    "Splits the wall time of all processes that worked on a run into training, waiting for data, "
    "compilation, evaluation, saving, starting, and work that was lost to interruptions."
)


def add_checkpoints_options(parser: Any) -> None:
    parser.add_argument("what", choices=("list", "verify", "prune", "rollback"))
    parser.add_argument("workdir", type=place, metavar="WORKDIR", help="or gs://BUCKET/PATH")
    parser.add_argument(
        "--keep-last", type=int, metavar="N", help="for 'prune' (default: as the run's config)"
    )
    parser.add_argument(
        "--keep-every", type=int, metavar="N", help="for 'prune': keep multiples of N, too"
    )
    parser.add_argument("--step", type=int, metavar="N", help="for 'rollback': where to go back to")


def add_report_options(parser: Any) -> None:
    parser.add_argument("workdir", type=place, metavar="WORKDIR", help="or gs://BUCKET/PATH")
    parser.add_argument("--json", action="store_true", help="print the account as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, as .png or .svg")


def run_checkpoints(arguments: Any) -> int:
    from bert_jax import resolve
    from bert_jax.training import checkpoint, recovery, workdir

    directory = _directory(arguments.workdir)
    if arguments.what == "rollback":
        if arguments.step is None:
            raise UsageError("checkpoints rollback: --step says where to go back to")
        recovery.roll_back(directory, arguments.step)
        print(f"{arguments.workdir} is back at step {arguments.step}")
        return 0
    if arguments.what == "prune":
        policy = resolve.load_json(directory / workdir.CONFIG).checkpoint
        keep_last = policy.keep_last if arguments.keep_last is None else arguments.keep_last
        keep_every = policy.keep_every if arguments.keep_every is None else arguments.keep_every
        if keep_last < 1 or keep_every < 0:
            raise UsageError("checkpoints prune: --keep-last is at least 1, --keep-every 0 or more")
        removed = checkpoint.prune(directory, keep_last=keep_last, keep_every=keep_every)
        print(f"removed {', '.join(map(str, removed)) or 'none'}")
        return 0
    verifies = arguments.what == "verify"
    rows, is_damaged = [], False
    for step in sorted([*checkpoint.steps(directory), *checkpoint.cut_off(directory)]):
        size, saved_at, trouble = checkpoint.describe(directory, step)
        if verifies:
            trouble = checkpoint.problem(directory, step)
        is_damaged |= trouble is not None
        said = trouble or ("every byte as it was saved" if verifies else "")
        rows.append((str(step), f"{size / 2**20:,.1f}", saved_at, said))
    table(str(arguments.workdir), ("step", "MiB", "saved", "state"), rows)
    return NoUsableCheckpoint.exit_code if is_damaged and verifies else 0


def run_report(arguments: Any) -> None:
    from bert_jax.training import ledger

    account = ledger.account(_directory(arguments.workdir))
    if arguments.plot is not None:
        ledger.plot(account, arguments.plot)
    if arguments.json:
        print(json.dumps(account, indent=2))
        return
    total = account["wall_seconds"]
    table(
        f"{arguments.workdir}: {account['starts']} starts, step {account['step']:,}",
        ("", "seconds", "share"),
        [
            (name.replace("_", " "), f"{seconds:,.1f}", f"{seconds / max(total, 1e-9):.1%}")
            for name, seconds in [*account["seconds"].items(), ("wall", total)]
        ],
    )
    for name in ("skipped_updates", "failed_saves", "preemptions"):
        if account[name]:
            print(f"{name.replace('_', ' ')}: {account[name]}")


def _directory(name: Path | str) -> Path:
    from bert_jax.training import bucket, workdir

    directory = bucket.directory_of(name)
    if not (directory / workdir.CONFIG).is_file():
        raise UsageError(f"{name} is no workdir: it has no {workdir.CONFIG}")
    return directory
