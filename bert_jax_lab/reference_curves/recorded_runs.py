"""Curves of finished runs: those of shipped configs (recorded_runs.json), and the user's own.

    {"recipe": "modern_tiny_cpu",        a shipped config
     "corpus": "docs:", "unigram_entropy_nats": 6.3,
     "command": "...", "commit": "...",  how to make them again
     "runs": [{"seed": 0, "training": {"steps": [...], "losses": [...]}, "held_out": {...}}]}

A group of runs counts for runs of its kind (comparable_runs.py) on text with the same unigram
entropy. A workdir keeps those that its user named, in `expected.json`, in the same form; there
`recipe` is the whole config.
"""

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax import config_loader, strict_json
from bert_jax.config import TrainConfig, from_dict, to_dict
from bert_jax.config_checks import complete
from bert_jax.errors import UsageError
from bert_jax.workdir import location, log_reader
from bert_jax.workdir.run_directory import CONFIG, EXPECTED
from bert_jax_lab.reference_curves import comparable_runs, curve
from bert_jax_lab.reference_curves.curve import Curve

_SHIPPED = Path(__file__).with_name("recorded_runs.json")


@dataclass(frozen=True, kw_only=True)
class RecordedRuns:
    """Runs of one config on one corpus."""

    name: str
    config: TrainConfig
    entropy: float
    training: tuple[Curve, ...]
    held_out: tuple[Curve, ...]

    @property
    def described(self) -> str:
        """Returns which runs they are, in words."""
        runs = max(len(self.training), len(self.held_out))
        return f"{runs} run{'s' if runs != 1 else ''} of {self.name}"


def of_kind(
    config: TrainConfig, entropy: float, groups: Iterable[RecordedRuns]
) -> tuple[RecordedRuns | None, list[comparable_runs.Difference]]:
    """Returns the first group of a run's kind, and in which judged fields the run differs from it.

    `entropy` is the unigram entropy of the run's corpus in nats.
    """
    for group in groups:
        apart, judged = comparable_runs.differences(complete(config), group.config)
        if not apart and comparable_runs.is_same_text(entropy, group.entropy):
            return group, judged
    return None, []


@functools.lru_cache(maxsize=1)
def shipped() -> tuple[RecordedRuns, ...]:
    """Returns the groups of shipped configs."""
    text = _SHIPPED.read_text(encoding="utf-8")
    return tuple(_read(group, config_loader.load_config) for group in json.loads(text))


def named(workdir: Path) -> tuple[RecordedRuns, ...]:
    """Returns the groups that the user of a run has named; none where there are none."""
    path = workdir / EXPECTED
    try:
        return tuple(parsed(group) for group in strict_json.load(path, default=()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is no list of curves ({type(error).__name__}: {error}); without it the run is "
            "compared with shipped ones"
        ) from error


def parsed(group: dict[str, Any]) -> RecordedRuns:
    """Returns a group that `of_runs` has made."""
    return _read(group, from_dict)


def _read(group: dict[str, Any], config_of: Any) -> RecordedRuns:
    def curves(name: str) -> tuple[Curve, ...]:
        found = [run[name] for run in group["runs"] if run[name]["steps"]]
        return tuple(Curve(tuple(c["steps"]), tuple(c["losses"])) for c in found)

    config = complete(config_of(group["recipe"]))
    return RecordedRuns(
        name=config.name,
        config=config,
        entropy=group["unigram_entropy_nats"],
        training=curves("training"),
        held_out=curves("held_out"),
    )


def of_runs(config: TrainConfig, entropy: float, paths: Iterable[Path | str]) -> dict[str, Any]:
    """Returns a group, as a file has it, of finished runs of the kind of a config.

    Each path is a workdir, or the workdir of a study, whose runs of other kinds are passed over.
    `entropy` is the unigram entropy of the corpus that the config is to be run on, in nats. Raises
    UsageError for a path without a run of this kind, and for a log without losses of masked words.
    """
    directories = []
    for place in paths:
        path = location.opened(place).path
        inner = sorted((path / "runs").glob(f"*/{CONFIG}"))
        found = [file.parent for file in inner if not _apart(config, entropy, file)]
        if inner and not found:
            raise UsageError(f"`expect` {path}: no run of this study is of this kind")
        if not inner and (problem := _apart(config, entropy, path / CONFIG)):
            raise UsageError(f"`expect` {path}: a run of another kind: {problem}")
        directories += found or [path]
    first = config_loader.load_config_json(directories[0] / CONFIG)
    return {
        "recipe": to_dict(first),
        "unigram_entropy_nats": entropy,
        "runs": [_curves_of(each, config) for each in directories],
    }


def _apart(config: TrainConfig, entropy: float, file: Path) -> str:
    """Returns in what the run of a config.json is not of the kind of `config`; nothing if it is."""
    try:
        stored = strict_json.load(file)
    except OSError as error:
        raise UsageError(f"`expect` {file.parent} holds no run: {error.strerror}") from error
    theirs = complete(config_loader.load_config_json(file))
    apart, _ = comparable_runs.differences(complete(config), theirs)
    if apart:
        shown = [f"{name} is {mine}, and {its} there" for name, mine, its in apart[:3]]
        more = f", and {len(apart) - 3} more" if len(apart) > 3 else ""
        return "; ".join(shown) + more
    its_entropy = (stored.get("corpus") or {}).get("unigram_entropy_nats")
    if its_entropy is None or not comparable_runs.is_same_text(entropy, its_entropy):
        return "its corpus is another one"
    return ""


def _curves_of(directory: Path, config: TrainConfig) -> dict[str, Any]:
    rows = log_reader.read_rows(directory)
    found = {
        "training": curve.training(rows, config.total_steps),
        "held_out": curve.held_out(rows),
    }
    if not any(each.steps for each in found.values()):
        raise UsageError(f"`expect` {directory}: its log has no loss of masked words")
    return {name: _plain(each) for name, each in found.items()}


def _plain(found: Curve) -> dict[str, Any]:
    return {"steps": [*found.steps], "losses": [round(loss, 4) for loss in found.losses]}
