"""The set-up that is examined, and what the checks find out for those that come after them."""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_jax.config import TrainConfig

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from bert_jax.data.corpus.store import Corpus
    from bert_jax.memory.fit import Settled
    from bert_jax.runtime.distributed import Connection


class Timing(NamedTuple):
    """The measured step of one phase; `step_seconds` is None where no step was finished."""

    compile_seconds: float
    step_seconds: float | None = None


@dataclass(kw_only=True)
class Case:
    """The arguments, as of `pretrain`, None where not given, and below them what is found out."""

    config_name: str | None = None
    overrides: Sequence[str] = ()
    corpus_directory: Path | Mapping[str, Path] | None = None
    workdir: Path | str | None = None
    topology_name: str | None = None
    init_from: Path | str | None = None
    allow_missing_heads: bool = False
    ignore_unexpected: Sequence[str] = ()
    allowed_changes: Sequence[str] = ()
    fit_memory: bool = False
    expect: Sequence[Path | str] | None = None
    # How several processes find each other; None for a single process.
    connection: "Connection | None" = None
    # When the last long check is given up, on the monotonic clock.
    ends_at: float = field(default_factory=lambda: time.monotonic() + 50)

    # True once jax may be asked: all processes, if there are several, are there.
    met: bool | None = None
    # Names what all processes write together; process 0's counts.
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    # Of each phase that could be measured, in order.
    timings: list[Timing] = field(default_factory=list)
    # A compilation that was given up goes on in a thread, which nothing can end.
    is_unfinished: bool = False

    # Not there until a check has found it out. A check that needs one is made after that.
    config: TrainConfig = field(init=False)
    corpus: "Corpus" = field(init=False)
    mesh: "Mesh" = field(init=False)
    # Bytes of a checkpoint, and the settings with which the steps fit into the devices' memory.
    state_bytes: int = field(init=False)
    settled: "Settled" = field(init=False)
    # Seconds that a save takes at least, and for each byte.
    save_seconds: tuple[float, float] = field(init=False)

    def known(self, name: str) -> Any:
        """Returns a field, None where it is not found out."""
        return getattr(self, name, None)


# What a check may need -> the argument without which nobody has asked for it.
COMES_FROM = {
    "config": "config_name",
    "corpus": "corpus_directory",
    "mesh": "config_name",
    "state_bytes": "config_name",
    "settled": "config_name",
    "save_seconds": "workdir",
}


class Check(NamedTuple):
    """One line of the table. `function` is "MODULE:NAME" in this room, a function of the case that
    returns a finding; `needs` are names of the case's fields.

    A check whose argument was not given is left out; one that needs what an earlier check could not
    find out is skipped.
    """

    name: str
    function: str
    needs: tuple[str, ...] = ()
    # Whether all processes do it together: then all of them must be able to.
    is_collective: bool = False
