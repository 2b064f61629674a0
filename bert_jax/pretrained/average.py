"""Averages the parameters of several checkpoints into a new workdir."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax

from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.interchange import name_map
from bert_jax.interchange.name_map import Foreign
from bert_jax.model import sharding
from bert_jax.pretrained.load import SCORED_BY, foreign_config, load_checkpoint
from bert_jax.update.state import TrainState
from bert_jax.workdir import checkpoint, run_directory


def average_checkpoints(sources: Sequence[Path | str], output: Path) -> int:
    """Writes the mean of the parameters of several checkpoints as a workdir with one checkpoint.

    Returns the step of that checkpoint, the highest of the sources. The validation rows and masks
    of the result are those in the first source. Raises UsageError if the sources have different
    models or tokenizers.
    """
    name_map.require_free(output)
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        first = load_checkpoint(sources[0], mesh=mesh)
        words, mean, step = load_tokenizer(first.tokenizer), first.params, first.step
        for number, source in enumerate(sources[1:], 2):
            loaded = load_checkpoint(source, mesh=mesh)
            ours, theirs = ((c.config.model, c.config.head) for c in (first, loaded))
            if ours != theirs:
                raise UsageError(f"{source} has another model or other heads than {sources[0]}")
            if load_tokenizer(loaded.tokenizer).hash != words.hash:
                raise UsageError(f"{source} has another tokenizer than {sources[0]}")
            mean = jax.tree.map(lambda m, p, n=number: m + (p - m) / n, mean, loaded.params)
            step = max(step, loaded.step)
        kept = {name: getattr(first.config, name) for name in SCORED_BY}
        kept["phases"] = first.config.scored_phases
        foreign = Foreign(first.config.model, first.config.head, mean, step)
        run = dataclasses.replace(foreign_config(foreign), **kept)
        state = dataclasses.replace(TrainState.create(run, mean), step=jax.numpy.int32(step))
        words.save(output / run_directory.TOKENIZER)
        saved = checkpoint.Checkpoints(output, run.checkpoint)
        saved.save(state.to_mesh(mesh, shard_weights=True), step=step)
        saved.close()
    # The config is written last: a workdir that has one is complete.
    run_directory.write_config(output, run, mean_of=[str(source) for source in sources])
    return step
