"""Shares of the sources of a mixture: weights that are named, or the sizes of the sources."""

import math
from collections.abc import Iterator, Mapping

from bert_jax.config.data import DataConfig
from bert_jax.errors import UsageError, brief, some

_HOW = "write NAME=WEIGHT for each source, such as wiki=3,code=1"


def problems(options: DataConfig) -> Iterator[tuple[str, str]]:
    """Yields what is impossible whatever the sources are: the name of the field, and why."""
    text = options.source_weights
    try:
        found = weights(text)
    except ValueError as error:
        yield "source_weights", f"is {brief(text)}: {error}"
        return
    if found and not any(found.values()):
        yield "source_weights", f"is {brief(text)}: no source has any rows"
    if found and options.source_temperature != 1:
        yield (
            "source_temperature",
            f"is {options.source_temperature:g}, which nothing reads where source_weights is "
            f"{brief(text)}; leave one of them out",
        )


def weights(text: str) -> dict[str, float]:
    """Returns the weight of each source that `wiki=3,code=1` names, by its name.

    Raises ValueError with what is wrong.
    """
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        try:
            value = float(number) if name and equals else math.nan
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"{part} is no weight; {_HOW}")
        if value < 0:
            raise ValueError(f"{name} has {number}; 0 leaves a source out, and none is negative")
        if name in found:
            raise ValueError(f"{name} is there twice; {_HOW}")
        found[name] = value
    return found


def shares(options: DataConfig, tokens: Mapping[str, int]) -> list[float]:
    """Returns the share of the rows that each source has, in their order; they add up to 1.

    `tokens` are those of the sources; one source, or none that has a name, has all rows. Raises
    UsageError where weights are not those of the sources.
    """
    named = weights(options.source_weights)
    if named and len(tokens) < 2:
        raise UsageError(
            f"data.source_weights is {brief(options.source_weights)}, and there is one `corpus`; "
            "name several, each as NAME=DIR, or leave the weights out"
        )
    if len(tokens) < 2:
        return [1.0]
    if named and named.keys() != tokens.keys():
        unknown = [name for name in named if name not in tokens]
        lacking = [name for name in tokens if name not in named]
        what = [f"names {', '.join(unknown)}, which no `corpus` is called"] if unknown else []
        what += [f"has no weight for {some(lacking)} (0 leaves it out)"] if lacking else []
        raise UsageError(
            f"data.source_weights is {brief(options.source_weights)}: it {', and '.join(what)}; "
            f"the sources are {some(tokens)}"
        )
    if named:
        each = [named[name] for name in tokens]
    else:
        each = [count ** (1 / options.source_temperature) for count in tokens.values()]
    return [share / sum(each) for share in each]
