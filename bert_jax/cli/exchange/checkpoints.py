"""List, verify, roll back or branch the checkpoints of a workdir.

'list' prints the steps. 'verify' compares every byte with the manifests (exit code 5 if one
differs). 'rollback' moves the checkpoints after --step to set_aside/, so that pretrain resumes from
that step; stop the trainer first. 'branch' copies one step, with the optimizer state, to
--output-dir, from which pretrain continues as another run.

examples:
  bert-jax checkpoints list runs/base
  bert-jax checkpoints rollback runs/base --step 2000
"""

import json
from pathlib import Path
from typing import Annotated, Literal

from bert_jax.cli.options import (
    Address,
    Positional,
    Verb,
    require_place_for,
)
from bert_jax.cli.options import run_directory as run_directory_of
from bert_jax.cli.output import table, tell
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import NoUsableCheckpoint, UsageError


@section
class CheckpointsOptions(Verb):
    what: Positional[Literal["list", "verify", "rollback", "branch"]] = setting(
        REQUIRED, "ACTION: list, verify, rollback or branch; branch needs --output-dir"
    )
    workdir: Positional[Address] = setting(
        REQUIRED, "WORKDIR: directory of a run, or gs://BUCKET/PATH"
    )
    json: bool = setting(False, "print one JSON object per step (list, verify)")
    step: int | None = setting(
        None,
        "N: the step to return to (rollback), or to copy (branch; default: the newest good step)",
    )
    output: Annotated[Path | None, "--output-dir"] = setting(
        None, "DIR: workdir of the new run, new or empty (branch)"
    )


def run(options: CheckpointsOptions) -> int:
    require_place_for(is_directory=True, output=options.output)
    if options.what == "branch" and options.output is None:
        raise UsageError("checkpoints branch needs --output-dir DIR, the workdir of the new run")
    if options.what != "branch" and options.output is not None:
        raise UsageError(f"checkpoints {options.what} has no --output-dir: it is for branch")
    if options.what in ("list", "verify") and options.step is not None:
        raise UsageError(f"checkpoints {options.what} has no --step: it is for rollback and branch")
    from bert_jax.workdir import checkpoint, location, recovery, run_directory
    from bert_jax.workdir.lock import only_trainer

    directory = run_directory_of(options.workdir)
    if options.output is not None:
        step = recovery.branch_off(directory, options.output, step=options.step)
        corpus = run_directory.corpus_of(directory) or "CORPUS"
        tell(f"wrote {options.output}: step {step:,} of {options.workdir}; continue with")
        tell(
            f"  bert-jax pretrain {options.output}/config.json --corpus {corpus} --workdir "
            f"{options.output} --set FIELD=VALUE --allow-change FIELD"
        )
        return 0
    if options.what == "rollback":
        if options.step is None:
            raise UsageError("checkpoints rollback needs --step N, the step to go back to")
        with only_trainer(options.workdir) as guard:
            # A trainer may have written since the directory was read.
            place = location.opened(options.workdir, guard=guard)
            recovery.roll_back(place.path, options.step)
        tell(f"the newest step of {options.workdir} is {options.step}")
        return 0
    verifies = options.what == "verify"
    rows, is_damaged = [], False
    for step in sorted([*checkpoint.steps(directory), *checkpoint.incomplete_steps(directory)]):
        size, saved_at, trouble = checkpoint.describe(directory, step)
        if verifies:
            trouble = checkpoint.problem(directory, step)
        is_damaged |= trouble is not None
        state = trouble or ("all bytes match the manifest" if verifies else "")
        if options.json:
            found = {"step": step, "bytes": size, "saved": saved_at, "state": state}
            print(json.dumps(found | {"is_good": trouble is None}))
        rows.append((str(step), f"{size / 2**20:,.1f}", saved_at, state))
    if not options.json:
        table(str(options.workdir), ("step", "MiB", "saved", "state"), rows)
    return NoUsableCheckpoint.exit_code if is_damaged and verifies else 0
