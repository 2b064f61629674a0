"""Average the parameters of several checkpoints of a run.

The mean of the last checkpoints often has a lower loss than the last checkpoint, at no cost in
training. The result is a workdir that evaluate, export, finetune and --init-from take. A run keeps
the last checkpoint.keep_last checkpoints and every checkpoint.keep_every-th.

example:
  bert-jax average runs/base --last 3 --output-dir runs/mean
"""

from pathlib import Path
from typing import Annotated

from bert_jax.cli.options import Address, Positional, Verb, require_place_for
from bert_jax.cli.options import run_directory as run_directory_of
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError


@section
class AverageOptions(Verb):
    checkpoint: Positional[tuple[Address, ...]] = setting(
        REQUIRED, "CHECKPOINT: a workdir, to average its steps, or several checkpoints"
    )
    output: Annotated[Path, "--output-dir"] = setting(
        REQUIRED, "DIR: new workdir with one checkpoint"
    )
    last: int | None = setting(None, "N: average the newest N steps (default: all stored steps)")


def run(options: AverageOptions) -> None:
    require_place_for(is_directory=True, output=options.output)
    from bert_jax.pretrained.average import average_checkpoints

    sources = options.checkpoint
    if len(sources) == 1:
        sources = _steps_of(sources[0], options.last)
    elif options.last is not None:
        raise UsageError("--last chooses among the steps of one workdir: name one CHECKPOINT")
    step = average_checkpoints(sources, options.output)
    print(f"wrote {options.output}: the mean of {len(sources)} checkpoints, step {step:,}")
    for source in sources:
        print(f"  {source}")


def _steps_of(workdir: Path | str, last: int | None) -> list[str]:
    from bert_jax.workdir import checkpoint

    directory = run_directory_of(workdir)
    steps = checkpoint.steps(directory)
    if last is not None and not 2 <= last <= len(steps):
        raise UsageError(
            f"--last {last}: {workdir} has {len(steps)} checkpoints; from 2 to as many can be "
            "averaged (checkpoint.keep_last is the number that a run keeps)"
        )
    if len(steps) < 2:
        raise UsageError(f"{workdir} has {len(steps)} checkpoints: an average needs 2")
    chosen = steps if last is None else steps[-last:]
    address = str(workdir).rstrip("/")
    return [f"{address}/{checkpoint.DIRECTORY}/{step}" for step in chosen]
