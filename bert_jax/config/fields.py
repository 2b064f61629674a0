"""Declares the fields of a config: each says once all that the rest of the package asks about it.

`setting` declares a field, `section` a group of them. Values come from JSON and go there.
"""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

from bert_jax.registry import Registry


class Rule(NamedTuple):
    """Says what another value of a field means."""

    # For a run that is resumed: it may differ, may if the user says so (`allow_change`), or not.
    on_resume: Literal["free", "flag", "refused"]
    # For two runs whose curves are compared: no matter, easily set wrong so that the curves show
    # it, or a run of another kind.
    compared: Literal["free", "judged", "equal"]
    # Why the overrides of a fine-tuning cannot set it, if they cannot.
    finetune: str = ""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All that a field says about itself, besides its name and its type."""

    default: Any
    rule: Rule
    # Its row in docs/configuration.md: Markdown, whose links begin in docs/.
    doc: str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: Registry | tuple[str, ...] | None = None
    # The field of its section that chooses who reads it; without one, it is always read. The entry
    # that is chosen says in `reads` which of these fields it does; of a chooser without a table
    # the values that do follow.
    read_by: tuple[str, ...] = ()
    # What other programs and papers call it. Dashes are written as underscores.
    called: tuple[str, ...] = ()
    # Of a model: whether BERT has it in other systems, by the same name.
    in_every_bert: bool = False
    # Whether it may be chosen by the memory that is free (memory/fit.py).
    fits_memory: bool = False
    # Whether a phase may change it (PhaseConfig.changes), beside what may change on resumption.
    by_phase: bool = False
    # Whether it counts steps of the run, and is fewer in a run of fewer.
    scales_with_steps: bool = False

    def allowed(self) -> str:
        """Returns the limits or the choices in words; nothing where there are none."""
        choices = self.choices.names() if isinstance(self.choices, Registry) else self.choices
        limits = (("at least", self.least), ("at most", self.most), ("above", self.above),
                  ("below", self.below))  # fmt: skip
        texts = [f"{word} {limit}" for word, limit in limits if limit is not None]
        return ", ".join(texts) if choices is None else f"one of {', '.join(choices)}"

    def problems(self, value: Any) -> Iterator[str]:
        """Yields what the limits of the field have against a value."""
        choices, items = self.choices, value if isinstance(value, tuple) else (value,)
        for item in items if choices is not None else ():
            if isinstance(choices, Registry) and item not in choices:
                yield choices.problem(item)
            elif isinstance(choices, tuple) and item not in choices:
                yield f"is {item!r}; choose one of {', '.join(choices)}"
        if isinstance(value, tuple):
            return
        if self.least is not None and value < self.least:
            is_switch = isinstance(value, float) and self.least == 0
            is_switch = is_switch and self.most is None and self.below is None
            off = "; 0 switches it off" if is_switch else ""
            yield f"is {value}; it must be at least {self.least}{off}"
        if self.most is not None and value > self.most:
            yield f"is {value}; it must be at most {self.most}"
        if self.above is not None and value <= self.above:
            yield f"is {value}; it must be positive"
        if self.below is not None and value >= self.below:
            yield f"is {value}; it must be below {self.below}"


# How, where or how often: no other numbers, beyond rounding.
FREE = Rule("free", "free")
# Other numbers from here on, and nothing that is saved: of a recipe, of what is learned from it.
PRETRAINING = "only pre-training has this field; leave it out"
RECIPE = Rule("flag", "judged")
DATA = Rule("flag", "equal", PRETRAINING)
PHASE = Rule("flag", "equal", "use `length`, `batch_size` and `epochs`")
# It decides what is saved.
TASKS = "it is the task's; leave it out"
SHAPE = Rule(
    "refused",
    "equal",
    "the model is the checkpoint's; of it only dropout, initializer_range and classifier_pooling "
    "can be set",
)
HEAD = Rule("refused", "equal", TASKS)

_KEY = "setting"
# Attributes of a section that are no fields of it in JSON: what they hold is.
OPTIONS, CHANGES = "options", "changes"


def setting(default: Any, rule: Rule, doc: str, **facts: Any) -> Any:
    """Declares a field of a section; `facts` are the other fields of `Setting`."""
    described = Setting(default=default, rule=rule, doc=doc, **facts)
    return dataclasses.field(default=default, metadata={_KEY: described})


_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def section(cls: type[_T]) -> type[_T]:
    """Makes a section of a config: a frozen dataclass whose every field says all about itself.

    Raises TypeError for a field that is neither a `setting` nor a section, nor several sections.
    """
    made: Any = dataclass(frozen=True, kw_only=True)(cls)
    for name, described in settings_of(made).items():
        if described is None and not is_section(item_of(typing.get_type_hints(made)[name])):
            raise TypeError(f"{cls.__name__}.{name} says nothing about itself: use setting()")
    return made


def settings_of(cls: type) -> dict[str, Setting | None]:
    """Returns what each field of a section says about itself; none for a section inside it."""
    found = {f.name: f.metadata.get(_KEY) for f in dataclasses.fields(cls)}
    return {n: s for n, s in found.items() if s is not None or n not in (OPTIONS, CHANGES)}


class Values(Mapping[str, Any]):
    """Values by name, in the order of the names: a mapping that can be compared and hashed."""

    def __init__(self, values: Mapping[str, Any] = types.MappingProxyType({})):
        self._values = dict(sorted(values.items()))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


@dataclass(frozen=True, kw_only=True)
class WithOptions:
    """The base of a section whose entries may have options (entries.py)."""

    options: Mapping[str, Any] = Values()

    def __post_init__(self):
        object.__setattr__(self, OPTIONS, Values(self.options))


@dataclass(frozen=True, kw_only=True)
class WithChanges:
    """The base of a section that changes fields of others, by their dotted paths."""

    # The sections of which it may.
    sections: ClassVar[Mapping[str, type]]
    changes: Mapping[str, Any] = Values()

    def __post_init__(self):
        object.__setattr__(self, CHANGES, Values(self.changes))


def fields_read_by(chooser: str, cls: type) -> list[str]:
    """Returns the fields of a section that say which values of the field `chooser` read them."""
    found = settings_of(cls).items()
    return [name for name, each in found if each is not None and each.read_by[:1] == (chooser,)]


def all_settings(cls: type, prefix: str = "") -> Iterator[tuple[str, Setting]]:
    """Yields the path and the setting of each field, in those of inner sections, too; `N` stands
    for a number: `phases.N.steps`.
    """
    hints = typing.get_type_hints(cls)
    for name, described in settings_of(cls).items():
        if described is not None:
            yield prefix + name, described
            continue
        inner = item_of(hints[name])
        numbered = "" if inner is hints[name] else ".N"
        yield from all_settings(inner, f"{prefix}{name}{numbered}.")


def numbered(path: str) -> str:
    """Returns the path of a field with N for the number of a phase."""
    return ".".join("N" if part.isdigit() else part for part in path.split("."))


def item_of(annotation: Any) -> Any:
    """Returns the type of the entries of a tuple, and any other type as it is."""
    if typing.get_origin(annotation) is tuple:
        (annotation,) = [a for a in typing.get_args(annotation) if a is not Ellipsis]
    return annotation


def is_section(annotation: Any) -> bool:
    return dataclasses.is_dataclass(annotation) and isinstance(annotation, type)
