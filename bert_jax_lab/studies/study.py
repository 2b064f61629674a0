"""A study: a base config, variants of the config, seeds, and downstream tasks.

A study is a Python file that defines `study()`, which returns a `Study`. The files in the
repository's `studies/` can be named without a path. Another function in the file is another scale
of the study, such as `paper()`. This module imports no heavy library.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from bert_jax import config_loader
from bert_jax.config import TrainConfig
from bert_jax.errors import UsageError, did_you_mean
from bert_jax.registry import PROBES

# The name of the run of the probes, which no task may have.
PROBED = "probes"
# A name becomes part of a file name.
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_+-]*$")]
T = TypeVar("T")
NonEmpty = Annotated[tuple[T, ...], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class Variant:
    """One of the models that a study compares."""

    name: Name
    # FIELD=VALUE of the config, applied after the study's own overrides.
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyTask:
    """A task on which every pre-trained model of a study is fine-tuned."""

    name: Name
    # Options of `bert-jax finetune`, without the options that the study sets.
    options: tuple[str, ...] = ()
    # The rule that makes the rows from the corpus (corpus_tasks.RULES); "" if `options` name data.
    rule: str = ""
    epochs: float = 3.0
    # Sequence length, in tokens.
    length: int = 64
    # The score of a random guess, in percent.
    chance: float | None = 50.0


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs of `base`, changed by `overrides` and then by each variant's overrides, per seed."""

    title: str
    # A shipped config, or a file next to the study.
    base: str
    variants: NonEmpty[Variant]
    overrides: tuple[str, ...] = ()
    # The number of seeds, counted from 0.
    seeds: Annotated[int, msgspec.Meta(ge=1)] = 1
    # Options of `bert-jax prepare` for a study that is started without a corpus. The rows of tasks
    # come from the validation split, which is larger than by default.
    corpus: tuple[str, ...] = (
        "--source", "docs:", "--vocab-size", "8192", "--validation-fraction", "0.1"
    )  # fmt: skip
    tasks: tuple[StudyTask, ...] = ()
    # Probes of every pre-trained model that has the heads for them (registry.PROBES).
    probes: tuple[str, ...] = ()
    # Validation metrics in the table, by their names in metrics.jsonl.
    columns: NonEmpty[str] = ("mlm_loss", "perplexity")
    # Give each variant the number of steps that costs the FLOPs of the first variant.
    equal_compute: bool = False
    # Compare each variant with the "first", with the "previous" or with none (""), by the first
    # column ("figures") or by the mean score of the "tasks".
    compare: Literal["first", "previous", ""] = "first"
    compare_on: Literal["figures", "tasks"] = "figures"
    # Fit a scaling law of parameters and tokens to the first column.
    has_law: bool = False
    # Remarks for readers of the table.
    notes: tuple[str, ...] = ()
    # Set by `load_study`.
    name: str = ""
    scale: str = "study"


def study_directory() -> Path:
    """Returns the directory of the shipped studies, in the wheel or in a checkout."""
    package = Path(__file__).parent
    shipped = package / "shipped"
    return shipped if shipped.is_dir() else package.parents[1] / "studies"


def shipped_names() -> list[str]:
    """Returns the names of the shipped studies."""
    return sorted(path.stem for path in study_directory().glob("*.py"))


def load_study(name_or_path: str, *, scale: str = "study") -> Study:
    """Returns the study of a shipped name or of a `.py` file, at one of its scales.

    Raises UsageError if there is no such study, or if one of its fields is invalid.
    """
    path = Path(name_or_path)
    if path.suffix != ".py":
        if name_or_path not in shipped_names():
            raise UsageError(
                f"study {name_or_path!r} is neither a file ending in .py nor a shipped study."
                + did_you_mean(name_or_path, shipped_names())
            )
        path = study_directory() / f"{name_or_path}.py"
    function = config_loader.execute(path).get(scale)
    if not callable(function):
        raise UsageError(
            f"study {path} defines no function {scale}(): define it, or choose another `preset`"
        )
    with config_loader.errors_of(path):
        found: Any = function()
    if not isinstance(found, Study):
        raise UsageError(f"study {path}: {scale}() returned {type(found).__name__}; return a Study")
    try:
        _validate(found)
    except UsageError as error:
        raise UsageError(f"study {path}: {error}") from error
    base = found.base
    if base.endswith((".py", ".json")):
        base = str(path.parent / base)
    return dataclasses.replace(found, name=found.name or path.stem, scale=scale, base=base)


def _validate(study: Study) -> None:
    """Raises UsageError for the first invalid field of a study."""
    try:
        msgspec.convert(dataclasses.asdict(study), Study)
    except msgspec.ValidationError as error:
        raise UsageError(f"{error} (a tuple with a single item needs a comma: (item,))") from None
    variants, tasks = [each.name for each in study.variants], [each.name for each in study.tasks]
    for kind, names in (("variants", variants), ("tasks", [*tasks, PROBED])):
        if repeated := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"{kind}: the name {repeated[0]!r} is taken; choose another name")
    for name in study.probes:
        if name not in PROBES:
            raise UsageError(f"a probe {PROBES.problem(name)}")


def overrides_of(
    study: Study, variant: Variant, seed: int, more: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Returns all changes of the base config of one run, in order; `more` come last."""
    own = f"name={study.name}-{variant.name}", f"seed={seed}"
    return (*own, *study.overrides, *variant.overrides, *more)


def config_of(study: Study, variant: Variant, seed: int, more: tuple[str, ...] = ()) -> TrainConfig:
    """Returns the validated config of one run.

    Raises UsageError that names the variant.
    """
    try:
        config = config_loader.load_config(study.base, overrides_of(study, variant, seed, more))
        if (config.name, config.seed) != (f"{study.name}-{variant.name}", seed):
            raise UsageError(
                "a study sets the name and the seed of its runs: remove name= and seed=, and set "
                "the study's `seeds`"
            )
    except UsageError as error:
        raise UsageError(f"study {study.name}, variant {variant.name}: {error}") from error
    return config
