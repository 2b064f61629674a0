"""The doctor's arguments: the arguments of the run that it checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.runtime.distributed import Connection


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of a run, as for `pretrain`; None if not given."""

    config: str | None = None
    overrides: Sequence[str] = ()
    corpus: Path | Mapping[str, Path] | None = None
    workdir: Path | str | None = None
    topology: str | None = None
    init_from: Path | str | None = None
    allow_missing_heads: bool = False
    ignore_unexpected: Sequence[str] = ()
    allowed_changes: Sequence[str] = ()
    fit_memory: bool = False
    # How several processes find each other; None for a single process.
    connection: Connection | None = None
    # The time after which a step that still compiles is abandoned.
    seconds: float = 50.0
