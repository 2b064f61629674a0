"""A study as one value: a base config, variants of it, seeds, and the tasks trained afterwards.

A study is a Python file that defines `study()`, which returns a `Study`; those of the
repository's `studies/` have names. Another function of the file is another scale of it, such as
`paper()`. Nothing here imports a heavy library.
"""

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax import config_loader
from bert_jax.config import TrainConfig
from bert_jax.config.conversion import checked, nearest
from bert_jax.config.fields import fields_of, is_section
from bert_jax.errors import UsageError, brief
from bert_jax.registry import PROBES

# The runs of `probes` are called so.
PROBED = "probes"
# A name becomes the name of a file.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")


@dataclass(frozen=True)
class Variant:
    """One of the things that a study compares."""

    name: str
    # FIELD=VALUE of the config, after the study's own.
    overrides: tuple[str, ...] = ()
    # The variant whose run of the same seed this one begins from.
    init_from: str = ""


@dataclass(frozen=True)
class StudyTask:
    """A task on which every pre-trained model of a study is fine-tuned."""

    name: str
    # The options of `bert-jax finetune`, without those that follow from the study.
    options: tuple[str, ...] = ()
    # The rule by which rows are made of the corpus (corpus_tasks.RULES); without one, `options`
    # name the rows.
    rule: str = ""
    epochs: float = 3.0
    # Tokens of a row.
    length: int = 64
    # The score of guessing, in percent.
    chance: float | None = 50.0


@dataclass(frozen=True, kw_only=True)
class CorpusRecipe:
    """How the corpus is made where none is given: the options of `bert-jax prepare`."""

    sources: tuple[str, ...] = ("docs:",)
    vocab_size: int = 8192
    # More than usual: rows of tasks come from held-out documents, too.
    validation_fraction: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs of `base`, changed by `overrides` and then by those of each variant, for each seed."""

    title: str
    # A shipped config, or a file.
    base: str
    variants: tuple[Variant, ...]
    overrides: tuple[str, ...] = ()
    # The number of seeds, from 0 on.
    seeds: int = 1
    corpus: CorpusRecipe = field(default_factory=CorpusRecipe)
    tasks: tuple[StudyTask, ...] = ()
    # Questions to every pre-trained model that has the parts for them (registry.PROBES).
    probes: tuple[str, ...] = ()
    # Held-out figures in the table, as rows of metrics.jsonl name them.
    columns: tuple[str, ...] = ("mlm_loss", "perplexity")
    # Each variant has the updates that cost as many FLOPs as the first one's.
    equal_compute: bool = False
    # The variant that each one is compared with: "first", "previous" or none; and on what: on the
    # first column, or on the mean score of the "tasks".
    compare: str = "first"
    compare_on: str = "figures"
    # A law of parameters and tokens is fitted to the first column.
    has_law: bool = False
    # What to know when reading the table.
    notes: tuple[str, ...] = ()
    # Set when it is found.
    name: str = ""
    scale: str = "study"


def study_directory() -> Path:
    """Returns the directory of the shipped studies: inside the wheel, or at the root of a
    checkout.
    """
    package = Path(__file__).parent
    shipped = package / "shipped"
    return shipped if shipped.is_dir() else package.parents[1] / "studies"


def shipped_names() -> list[str]:
    """Returns the names of the shipped studies."""
    return sorted(path.stem for path in study_directory().glob("*.py"))


def load_study(name_or_path: str, *, scale: str = "study") -> Study:
    """Returns the study of a shipped name or of a `.py` file, at one of its scales.

    Raises UsageError where there is none, or where its parts do not go together.
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
            f"study {path}: it has no function {scale}(); define it, or choose a `scale` of "
            f"{', '.join(known) or 'another file'}"
        )
    with config_loader.errors_of(path):
        found: Any = namespace[scale]()
    if not isinstance(found, Study):
        raise UsageError(f"study {path}: {scale}() returned {type(found).__name__}, no Study")
    found = dataclasses.replace(found, name=found.name or path.stem, scale=scale)
    if found.base.endswith((".py", ".json")):
        # A config beside the study.
        found = dataclasses.replace(found, base=str(path.parent / found.base))
    try:
        _validate(found)
    except UsageError as error:
        raise UsageError(f"study {path}: {error}") from error
    return found


def _require_types(value: Any, where: str) -> None:
    """Raises UsageError for a field of `value`, a study or a part of one, of another type than it
    declares: of a tuple of one it is the comma that is forgotten.
    """
    for name, declared in fields_of(type(value)).items():
        found, here = getattr(value, name), f"{where}{name}"
        item, hint = declared.item, declared.annotation
        if found is None and declared.is_optional:
            continue
        if item is not hint and not isinstance(found, tuple | list):
            raise UsageError(
                f"{here} is {brief(found)}; expected a tuple: one of a single thing is (thing,)"
            )
        for number, each in enumerate(found if item is not hint else [found]):
            if not is_section(item):
                checked(each, item, here)
            elif not isinstance(each, item):
                raise UsageError(f"{here}: expected {item.__name__}, got {brief(each)}")
            else:
                _require_types(each, f"{here}.{number}." if item is not hint else f"{here}.")


def _validate(study: Study) -> None:
    _require_types(study, "")
    for kind, names in (
        ("variant", [variant.name for variant in study.variants]),
        ("task", [task.name for task in study.tasks]),
    ):
        for name in names:
            if not _NAME.fullmatch(name):
                raise UsageError(f"{kind} {name!r}: a name is letters, digits, _, + and -")
        if len(set(names)) < len(names):
            raise UsageError(f"two {kind}s have one name: {', '.join(names)}")
    if study.probes and any(task.name == PROBED for task in study.tasks):
        raise UsageError(f"task {PROBED!r}: the runs of probes are called so; rename the task")
    if not study.variants or study.seeds < 1:
        raise UsageError("it has no variant, or no seed")
    if not study.columns:
        raise UsageError("columns is empty; name a held-out figure, such as mlm_loss")
    for name in study.probes:
        if name not in PROBES:
            raise UsageError(f"a probe {PROBES.problem(name)}")
    if study.compare not in ("", "first", "previous"):
        raise UsageError(f"compare is {study.compare!r}; choose first, previous or nothing")
    if study.compare_on not in ("figures", "tasks"):
        raise UsageError(f"compare_on is {study.compare_on!r}; choose figures or tasks")
    earlier: set[str] = set()
    for variant in study.variants:
        if variant.init_from and variant.init_from not in earlier:
            raise UsageError(
                f"variant {variant.name}: init_from {variant.init_from!r} is no variant before it"
            )
        earlier.add(variant.name)


def config_of(study: Study, variant: Variant, seed: int, more: tuple[str, ...] = ()) -> TrainConfig:
    """Returns the checked config of one run; `more` overrides come last.

    Raises UsageError, which names the variant.
    """
    try:
        config = config_loader.load_config(study.base, overrides_of(study, variant, seed, more))
        if (config.name, config.seed) != (_name_of(study, variant), seed):
            raise UsageError(
                "a study names its runs and gives them their seeds: leave out name= and seed=, and "
                "set the study's seeds"
            )
    except UsageError as error:
        raise UsageError(f"study {study.name}, variant {variant.name}: {error}") from error
    return config


def overrides_of(
    study: Study, variant: Variant, seed: int, more: tuple[str, ...] = ()
) -> list[str]:
    """Returns all changes of the base config, in their order."""
    own = [f"name={_name_of(study, variant)}", f"seed={seed}"]
    return [*own, *study.overrides, *variant.overrides, *more]


def _name_of(study: Study, variant: Variant) -> str:
    return f"{study.name}-{variant.name}"
