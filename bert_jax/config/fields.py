"""Declares the fields of a config: each says once all that the rest of the package asks about it.

`setting` declares a field, `section` a group of them. Values come from JSON and go there.
"""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, dataclass_transform

from bert_jax.errors import UsageError, brief
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
    # Who reads it: the field of its section that chooses, and the built-in values of it that do;
    # without any, all do.
    read_by: tuple[str, ...] = ()
    # What other programs and papers call it. Dashes are written as underscores.
    called: tuple[str, ...] = ()
    # Of a model: whether BERT has it in other systems, by the same name.
    in_every_bert: bool = False
    # Whether it may be chosen by the memory that is free (memory/fit.py).
    fits_memory: bool = False

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
    "the model is the checkpoint's; of it only dropout and initializer_range can be set",
)
HEAD = Rule("refused", "equal", TASKS)

_KEY = "setting"


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
        if described is None and not _is_section(_item(typing.get_type_hints(made)[name])):
            raise TypeError(f"{cls.__name__}.{name} says nothing about itself: use setting()")
    return made


def settings_of(cls: type) -> dict[str, Setting | None]:
    """Returns what each field of a section says about itself; none for a section inside it."""
    return {field.name: field.metadata.get(_KEY) for field in dataclasses.fields(cls)}


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
        inner = _item(hints[name])
        numbered = "" if inner is hints[name] else ".N"
        yield from all_settings(inner, f"{prefix}{name}{numbered}.")


def numbered(path: str) -> str:
    """Returns the path of a field with N for the number of a phase."""
    return ".".join("N" if part.isdigit() else part for part in path.split("."))


def _item(annotation: Any) -> Any:
    """Returns the type of the entries of a tuple, and any other type as it is."""
    if typing.get_origin(annotation) is tuple:
        (annotation,) = [a for a in typing.get_args(annotation) if a is not Ellipsis]
    return annotation


def _is_section(annotation: Any) -> bool:
    return dataclasses.is_dataclass(annotation) and isinstance(annotation, type)


# --- JSON ----------------------------------------------------------------------------------------


def to_dict(config: Any) -> dict[str, Any]:
    """Returns the plain JSON-able form of any config dataclass; `convert` is its inverse."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def flatten(config: Any) -> dict[str, Any]:
    """Returns `{"model.hidden_size": 768, "phases.0.steps": ...}`: one entry for each leaf.

    `config` is a dataclass, or a value as JSON has it.
    """

    def walk(value, path):
        if isinstance(value, dict):
            for key, child in value.items():
                yield from walk(child, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for i, child in enumerate(value):
                yield from walk(child, f"{path}.{i}")
        else:
            yield path, value

    return dict(walk(to_dict(config) if dataclasses.is_dataclass(config) else config, ""))


def convert(value: Any, annotation: Any, path: str) -> Any:
    """Returns `value`, as read from JSON, as an instance of `annotation`."""
    where = path or "the config"
    if _is_section(annotation):
        if not isinstance(value, dict):
            raise UsageError(f"{where}: expected a section of fields, got {brief(value)}")
        hints = typing.get_type_hints(annotation)
        for key in value:
            if key not in hints:
                raise UsageError(
                    f"{_join(path, brief(key)[1:-1])}: no such field.{nearest(key, hints)}"
                )
        return annotation(**{k: convert(v, hints[k], _join(path, k)) for k, v in value.items()})
    if typing.get_origin(annotation) is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{where}: expected a list, got {brief(value)}")
        item = _item(annotation)
        return tuple(convert(v, item, _join(path, str(i))) for i, v in enumerate(value))
    if isinstance(annotation, types.UnionType):
        if value is None and type(None) in typing.get_args(annotation):
            return None
        (annotation,) = [a for a in typing.get_args(annotation) if a is not type(None)]
    if annotation is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e6 is how people write a million
    if isinstance(value, int) and abs(value) >= 2**63:
        raise UsageError(f"{where}: {brief(value)} does not fit in 64 bits")
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not annotation:
        name = getattr(annotation, "__name__", annotation)
        raise UsageError(f"{where}: expected {name}, got {brief(value)}")
    return value


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def nearest(key: str, names) -> str:
    """Returns what to say after an unknown `key`: the name it resembles, or all there are."""
    close = difflib.get_close_matches(key, list(names), n=1, cutoff=0.5)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Fields here: {', '.join(names)}."
