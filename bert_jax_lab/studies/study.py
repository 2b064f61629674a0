"""A study as one value: a base config, variants of the config, seeds, and downstream tasks.

A study is a Python file that defines `study()`, which returns a `Study`; the files in the
repository's `studies/` have names. Another function in the file is another scale of the study, such
as `paper()`. This module imports no heavy library.
"""

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bert_jax import config_loader
from bert_jax.config import TrainConfig
from bert_jax.config.conversion import nearest
from bert_jax.errors import UsageError
from bert_jax.registry import PROBES

# The name of the run that asks the probes.
PROBED = "probes"
# A name becomes part of a file name.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")


@dataclass(frozen=True)
class Variant:
    """One of the models that a study compares."""

    name: str
    # FIELD=VALUE of the config, applied after the study's own overrides.
    overrides: tuple[str, ...] = ()
    # The variant from which this variant is initialized, at the same seed.
    init_from: str = ""


@dataclass(frozen=True)
class StudyTask:
    """A task on which every pre-trained model of a study is fine-tuned."""

    name: str
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
class CorpusRecipe:
    """Options of `bert-jax prepare` for a study that is started without a corpus."""

    sources: tuple[str, ...] = ("docs:",)
    vocab_size: int = 8192
    # Larger than the default of prepare: rows of tasks come from the validation split as well.
    validation_fraction: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs of `base`, changed by `overrides` and then by each variant's overrides, per seed."""

    title: str
    # A shipped config, or a file next to the study.
    base: str
    variants: tuple[Variant, ...]
    overrides: tuple[str, ...] = ()
    # The number of seeds, counted from 0.
    seeds: int = 1
    corpus: CorpusRecipe = field(default_factory=CorpusRecipe)
    tasks: tuple[StudyTask, ...] = ()
    # Probes of every pre-trained model that has the heads for them (registry.PROBES).
    probes: tuple[str, ...] = ()
    # Validation metrics in the table, by their names in metrics.jsonl.
    columns: tuple[str, ...] = ("mlm_loss", "perplexity")
    # Give each variant as many steps as cost the FLOPs of the first variant.
    equal_compute: bool = False
    # Compare each variant with the "first", with the "previous" or with none (""), by the first
    # column ("figures") or by the mean score of the "tasks".
    compare: str = "first"
    compare_on: str = "figures"
    # Fit a scaling law of parameters and tokens to the first column.
    has_law: bool = False
    # What a reader of the table should know.
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
                + nearest(name_or_path, shipped_names())
            )
        path = study_directory() / f"{name_or_path}.py"
    namespace = config_loader.execute(path)
    scales = [
        name
        for name, value in namespace.items()
        if callable(value) and getattr(value, "__module__", "") == namespace["__name__"]
    ]
    if scale not in scales or scale.startswith("_"):
        known = [name for name in scales if not name.startswith("_")]
        raise UsageError(
            f"study {path}: there is no function {scale}(); define it, or choose a `scale` of "
            f"{', '.join(known) or 'another file'}"
        )
    with config_loader.errors_of(path):
        found: Any = namespace[scale]()
    if not isinstance(found, Study):
        raise UsageError(f"study {path}: {scale}() returned {type(found).__name__}; return a Study")
    found = dataclasses.replace(found, name=found.name or path.stem, scale=scale)
    try:
        _validate(found)
    except UsageError as error:
        raise UsageError(f"study {path}: {error}") from error
    if found.base.endswith((".py", ".json")):
        found = dataclasses.replace(found, base=str(path.parent / found.base))
    return found


def _validate(study: Study) -> None:
    """Raises UsageError for the first invalid field of a study."""
    try:
        msgspec.convert(dataclasses.asdict(study), Study)
    except msgspec.ValidationError as error:
        raise UsageError(f"{error} (a tuple with a single item needs a comma: (item,))") from None
    for kind, names in (
        ("variant", [variant.name for variant in study.variants]),
        ("task", [task.name for task in study.tasks]),
    ):
        for name in names:
            if not _NAME.fullmatch(name):
                raise UsageError(f"{kind} {name!r}: a name is letters, digits, _, + and -")
        if len(set(names)) < len(names):
            raise UsageError(f"two {kind}s have the same name: {', '.join(names)}")
    if study.probes and any(task.name == PROBED for task in study.tasks):
        raise UsageError(f"task {PROBED!r}: the run of the probes has this name; rename the task")
    if not study.variants or study.seeds < 1:
        raise UsageError("variants is empty, or seeds is below 1")
    if not study.columns:
        raise UsageError("columns is empty; name a validation metric, such as mlm_loss")
    for name in study.probes:
        if name not in PROBES:
            raise UsageError(f"a probe {PROBES.problem(name)}")
    for name, choices in (
        ("compare", ("first", "previous", "")),
        ("compare_on", ("figures", "tasks")),
    ):
        if getattr(study, name) not in choices:
            raise UsageError(f"{name} is {getattr(study, name)!r}; choose one of {choices}")
    earlier: set[str] = set()
    for variant in study.variants:
        if variant.init_from and variant.init_from not in earlier:
            raise UsageError(
                f"variant {variant.name}: init_from is {variant.init_from!r}; name an earlier "
                "variant"
            )
        earlier.add(variant.name)


def overrides_of(
    study: Study, variant: Variant, seed: int, more: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Returns all changes of the base config of one run, in order; `more` come last."""
    own = f"name={_run_name(study, variant)}", f"seed={seed}"
    return (*own, *study.overrides, *variant.overrides, *more)


def config_of(study: Study, variant: Variant, seed: int, more: tuple[str, ...] = ()) -> TrainConfig:
    """Returns the validated config of one run.

    Raises UsageError, which names the variant.
    """
    try:
        config = config_loader.load_config(study.base, overrides_of(study, variant, seed, more))
        if (config.name, config.seed) != (_run_name(study, variant), seed):
            raise UsageError(
                "a study sets the name and the seed of its runs: remove name= and seed=, and set "
                "the study's `seeds`"
            )
    except UsageError as error:
        raise UsageError(f"study {study.name}, variant {variant.name}: {error}") from error
    return config


def _run_name(study: Study, variant: Variant) -> str:
    return f"{study.name}-{variant.name}"
