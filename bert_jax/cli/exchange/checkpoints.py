"""List, verify, prune or roll back the checkpoints of a workdir, or branch off from one.

'list' shows the steps; 'verify' reads every byte and compares it with the manifests (exit code 5 if
one differs); 'prune' removes all but the newest; 'rollback' moves what came after a step to
set_aside/, so that pretrain goes on from there (no trainer may be at work on it); 'branch' copies
one step, moments included, to --output, from which pretrain goes on as another run.
"""

import json
from typing import Any, Literal

from bert_jax.cli.options import (
    Address,
    Local,
    Positional,
    Verb,
    options,
    require_place_for_directory,
)
from bert_jax.cli.options import run_directory as run_directory_of
from bert_jax.cli.output import table, tell
from bert_jax.errors import NoUsableCheckpoint, UsageError


@options
class CheckpointsOptions(Verb):
    what: Positional[Literal["list", "verify", "prune", "rollback", "branch"]]
    """what to do; for [`branch`](reliability.md#changing-a-run) name --output"""
    workdir: Positional[Address]
    """WORKDIR: a run's directory, or gs://BUCKET/PATH"""
    keep_last: int | None = None
    """N: for 'prune': how many of the newest stay (default: as in its config)"""
    keep_every: int | None = None
    """N: for 'prune': multiples of N stay, too (default: as in its config)"""
    json: bool = False
    """for 'list' and 'verify': print an object a step"""
    step: int | None = None
    """N: for 'rollback': where to go back to; for 'branch': where it begins (default: the newest
    good step)"""
    output: Local | None = None
    """DIR: for 'branch': the workdir of the new run, new or empty"""


def run(options: CheckpointsOptions) -> int:
    require_place_for_directory(output=options.output)
    if (options.output is not None) != (options.what == "branch"):
        raise UsageError("--output DIR is the workdir of a 'branch', and is needed for one")
    from bert_jax.workdir import checkpoint, location, recovery, run_directory
    from bert_jax.workdir.lease import only_trainer

    directory = run_directory_of(options.workdir)
    if options.output is not None:
        step = recovery.branch_off(directory, options.output, step=options.step)
        corpus = run_directory.corpus_of(directory) or "CORPUS"
        tell(f"wrote {options.output}: step {step:,} of {options.workdir}; go on with")
        tell(
            f"  bert-jax pretrain {options.output}/config.json --corpus {corpus} --workdir "
            f"{options.output} --set FIELD=VALUE --allow-change FIELD"
        )
        return 0
    if options.what in ("rollback", "prune"):
        with only_trainer(options.workdir) as lease:
            # Another trainer may have written since the directory was looked at.
            place = location.opened_to_write(options.workdir, process=0, lease=lease)
            return _change(options, place.path)
    verifies = options.what == "verify"
    rows, is_damaged = [], False
    for step in sorted([*checkpoint.steps(directory), *checkpoint.incomplete_steps(directory)]):
        size, saved_at, trouble = checkpoint.describe(directory, step)
        if verifies:
            trouble = checkpoint.problem(directory, step)
        is_damaged |= trouble is not None
        state = trouble or ("every byte as it was saved" if verifies else "")
        if options.json:
            found = {"step": step, "bytes": size, "saved": saved_at, "state": state}
            print(json.dumps(found | {"is_good": trouble is None}))
        rows.append((str(step), f"{size / 2**20:,.1f}", saved_at, state))
    if not options.json:
        table(str(options.workdir), ("step", "MiB", "saved", "state"), rows)
    return NoUsableCheckpoint.exit_code if is_damaged and verifies else 0


def _change(options: CheckpointsOptions, directory: Any) -> int:
    from bert_jax import config_loader
    from bert_jax.workdir import checkpoint, recovery, run_directory

    if options.what == "rollback":
        if options.step is None:
            raise UsageError("checkpoints rollback needs --step N, the step to go back to")
        recovery.roll_back(directory, options.step)
        print(f"{options.workdir} is back at step {options.step}")
        return 0
    policy = config_loader.load_config_json(directory / run_directory.CONFIG).checkpoint
    keep_last = policy.keep_last if options.keep_last is None else options.keep_last
    keep_every = policy.keep_every if options.keep_every is None else options.keep_every
    if keep_last < 1 or keep_every < 0:
        raise UsageError("checkpoints prune: --keep-last is at least 1, --keep-every 0 or more")
    there = checkpoint.steps(directory)
    kept = checkpoint.kept_of(directory, there, keep_last=keep_last, keep_every=keep_every)
    damaged = [step for step in kept if checkpoint.problem(directory, step) is not None]
    if damaged:
        raise NoUsableCheckpoint(
            f"checkpoints prune: step {max(damaged)} of {options.workdir} would be kept and "
            "is damaged; nothing is removed: 'bert-jax checkpoints verify' names what is good, "
            "and 'bert-jax checkpoints rollback --step N' goes back to it"
        )
    removed = checkpoint.prune(directory, keep_last=keep_last, keep_every=keep_every)
    print(f"removed {', '.join(map(str, removed)) or 'none'}")
    return 0
