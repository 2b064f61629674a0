"""Declares options: the fields of a config, and the options of the kinds that registries name.

    @section
    class Muon(Optimizer, kind="muon"):
        momentum: Rate = setting(0.95, "Share of the old momentum that is kept.")

declares an option with its type, limits, default and documentation. Everything that reads, checks,
documents or compares an option uses this declaration. Types and limits are those of msgspec
(https://jcristharif.com/msgspec/constraints.html), and msgspec checks them.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

from msgspec import Meta

from bert_jax.registry import Registry

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
# A decay or a dropout rate.
Rate = Annotated[float, Meta(ge=0, lt=1)]

# The default of an option that has to be given.
REQUIRED: Any = dataclasses.MISSING

_T = TypeVar("_T")


def setting(
    default: Any, doc: str, *, free: bool | None = None, choices: Registry | None = None
) -> Any:
    """Declares a field of a section. `free` is that of the section unless it is given."""
    metadata = {"doc": doc, "free": free, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


# `setting` is no field specifier here: type checkers read defaults of specifiers by keyword only.
@dataclass_transform(frozen_default=True, kw_only_default=True)
def section(cls: type[_T]) -> type[_T]:
    """Makes a section of a config: a frozen dataclass of settings, sections and tuples of sections.

    A class attribute `free` is the default of its fields.
    """
    return dataclass(frozen=True, kw_only=True)(cls)


class OptionField(NamedTuple):
    """A field of a section."""

    # The annotation, and the annotation of one item if the field is a tuple. Neither has `| None`.
    annotation: Any
    item: Any
    is_optional: bool = False
    default: Any = None
    # Markdown without links; "" for a section.
    doc: str = ""
    # Whether another value needs no permission (`allow_change`) when a run is resumed.
    free: bool = False
    # The names that the option, or the kind of a section, may have.
    choices: Registry | None = None

    def allowed(self) -> str:
        """Returns the limits or the choices in words; an empty string if there are none."""
        names = self.choices.names() if self.choices else ()
        if names := names or choices_of(self.item):
            return f"one of {', '.join(names)}"
        words = {"ge": "at least", "le": "at most", "gt": "above", "lt": "below"}
        metas = getattr(self.annotation, "__metadata__", ())
        limits = [(w, getattr(meta, n)) for meta in metas for n, w in words.items()]
        return ", ".join(f"{word} {limit}" for word, limit in limits if limit is not None)


def choices_of(annotation: Any) -> tuple[str, ...]:
    """Returns the values of a Literal or of a tuple of it, and nothing for another type."""
    if typing.get_origin(annotation) is tuple:
        annotation = typing.get_args(annotation)[0]
    return typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()


@functools.cache
def fields_of(cls: Any) -> dict[str, OptionField]:
    """Returns the fields of a section by name."""
    hints, found = typing.get_type_hints(cls, include_extras=True), {}
    for field in dataclasses.fields(cls):
        annotation, declared = hints[field.name], field.metadata
        is_optional = typing.get_origin(annotation) in (types.UnionType, typing.Union)
        if is_optional:
            (annotation,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
        is_tuple = typing.get_origin(annotation) is tuple
        item = typing.get_args(annotation)[0] if is_tuple else annotation
        free = declared.get("free")
        found[field.name] = OptionField(
            annotation,
            item,
            is_optional,
            field.default,
            declared.get("doc", ""),
            getattr(cls, "free", False) if free is None else free,
            item.table if is_kind(item) else declared.get("choices"),
        )
    return found


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The base of a tagged union: a section with one subclass for each name of a registry.

    In JSON the tag is `kind`: `{"kind": "muon", "momentum": 0.95}` or, with default options only,
    `"muon"`. An entry with options declares a subclass in its own module, which is imported when
    a config chooses the kind. The subclass of the default is declared with the base, so that a
    config can be read without JAX.
    """

    # The registry of the union, and the tag.
    table: ClassVar[Registry]
    kind: ClassVar[str] = ""
    # The default tag: without it a value has to name its kind.
    default_kind: ClassVar[str] = ""
    # The subclasses that have been declared, by tag.
    _declared: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, *, kind: str = "", table: Registry | None = None) -> None:
        super().__init_subclass__()
        if table is not None:
            cls.table, cls._declared = table, {}
        if kind:
            cls.kind, cls._declared[kind] = kind, cls

    @classmethod
    def of_kind(cls, name: str) -> Any:
        """Returns the subclass of a tag; an entry without a declaration has no options.

        Raises UsageError, with the nearest name, if the registry has no such entry.
        """
        if name not in cls._declared or name not in cls.table:
            _ = cls.table[name]  # imports the module with the declaration
        if name not in cls._declared:
            cls._declared[name] = cls.made(name)
        return cls._declared[name]

    @classmethod
    def made(cls, name: str, options: Iterable[str] = ()) -> Any:
        """Returns a class for a tag without a declaration, with options of any type."""
        fields = [(option, Any, setting(None, "")) for option in options]
        own = {"kind": name}
        return dataclasses.make_dataclass(
            cls.__name__, fields, bases=(cls,), namespace=own, frozen=True, kw_only=True
        )

    def entry(self) -> Any:
        """Returns the entry of the registry."""
        return self.table[self.kind]


def is_kind(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Kind)
