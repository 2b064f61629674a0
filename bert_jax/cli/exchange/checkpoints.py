"""The verb `checkpoints`: what a workdir holds."""

import json
from typing import Any

from bert_jax.cli.options import add_json, local, require_place_for_directory
from bert_jax.cli.options import run_directory as run_directory_of
from bert_jax.cli.output import table
from bert_jax.config_loader import path_or_address
from bert_jax.errors import NoUsableCheckpoint, UsageError

SUMMARY = "list, verify, prune or roll back the checkpoints of a workdir, or branch off from one"
DETAILS = (
    "'list' shows the steps; 'verify' reads every byte and compares it with the manifests (exit "
    "code 5 if one differs); 'prune' removes all but the newest; 'rollback' moves what came after "
    "a step to set_aside/, so that pretrain goes on from there (no trainer may be at work on it); "
    "'branch' copies one step, moments included, to --output, from which pretrain goes on as "
    "another run."
)


def add_options(parser: Any) -> None:
    parser.add_argument(
        "what", choices=("list", "verify", "prune", "rollback", "branch"), help="what to do"
    )
    parser.add_argument(
        "workdir",
        type=path_or_address,
        metavar="WORKDIR",
        help="a run's directory, or gs://BUCKET/PATH",
    )
    parser.add_argument(
        "--keep-last",
        type=int,
        metavar="N",
        help="for 'prune': how many of the newest stay (default: as in its config)",
    )
    parser.add_argument(
        "--keep-every", type=int, metavar="N", help="for 'prune': multiples of N stay, too"
    )
    add_json(parser, "for 'list' and 'verify': print an object a step")
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="for 'rollback': where to go back to; for 'branch': where it begins (default: the "
        "newest)",
    )
    parser.add_argument(
        "--output", type=local, metavar="DIR", help="for 'branch': the workdir of the new run"
    )


def run(arguments: Any) -> int:
    require_place_for_directory(output=arguments.output)
    if (arguments.output is not None) != (arguments.what == "branch"):
        raise UsageError("--output DIR is the workdir of a 'branch', and is needed for one")
    from bert_jax.workdir import checkpoint, recovery, run_directory
    from bert_jax.workdir.run_directory import only_trainer

    directory = run_directory_of(arguments.workdir)
    if arguments.what == "branch":
        step = recovery.branch_off(directory, arguments.output, step=arguments.step)
        corpus = run_directory.corpus_of(directory) or "CORPUS"
        print(
            f"wrote {arguments.output}: step {step:,} of {arguments.workdir}; go on with\n"
            f"  bert-jax pretrain {arguments.output}/config.json --corpus {corpus} --workdir "
            f"{arguments.output} --set FIELD=VALUE --allow-change FIELD"
        )
        return 0
    if arguments.what in ("rollback", "prune"):
        with only_trainer(arguments.workdir):
            return _change(arguments, directory)
    verifies = arguments.what == "verify"
    rows, is_damaged = [], False
    for step in sorted([*checkpoint.steps(directory), *checkpoint.incomplete_steps(directory)]):
        size, saved_at, trouble = checkpoint.describe(directory, step)
        if verifies:
            trouble = checkpoint.problem(directory, step)
        is_damaged |= trouble is not None
        said = trouble or ("every byte as it was saved" if verifies else "")
        if arguments.json:
            found = {"step": step, "bytes": size, "saved": saved_at, "state": said}
            print(json.dumps(found | {"is_good": trouble is None}))
        rows.append((str(step), f"{size / 2**20:,.1f}", saved_at, said))
    if not arguments.json:
        table(str(arguments.workdir), ("step", "MiB", "saved", "state"), rows)
    return NoUsableCheckpoint.exit_code if is_damaged and verifies else 0


def _change(arguments: Any, directory: Any) -> int:
    from bert_jax import config_loader
    from bert_jax.workdir import checkpoint, recovery, run_directory

    if arguments.what == "rollback":
        if arguments.step is None:
            raise UsageError("checkpoints rollback: --step says where to go back to")
        recovery.roll_back(directory, arguments.step)
        print(f"{arguments.workdir} is back at step {arguments.step}")
        return 0
    policy = config_loader.load_config_json(directory / run_directory.CONFIG).checkpoint
    keep_last = policy.keep_last if arguments.keep_last is None else arguments.keep_last
    keep_every = policy.keep_every if arguments.keep_every is None else arguments.keep_every
    if keep_last < 1 or keep_every < 0:
        raise UsageError("checkpoints prune: --keep-last is at least 1, --keep-every 0 or more")
    there = checkpoint.steps(directory)
    kept = checkpoint.kept_of(there, keep_last=keep_last, keep_every=keep_every)
    damaged = [step for step in kept if checkpoint.problem(directory, step) is not None]
    if damaged:
        raise NoUsableCheckpoint(
            f"checkpoints prune: step {max(damaged)} of {arguments.workdir} would be kept and "
            "is damaged; nothing is removed: 'bert-jax checkpoints verify' names what is good, "
            "and 'bert-jax checkpoints rollback --step N' goes back to it"
        )
    removed = checkpoint.prune(directory, keep_last=keep_last, keep_every=keep_every)
    print(f"removed {', '.join(map(str, removed)) or 'none'}")
    return 0
