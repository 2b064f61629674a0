"""Shares of the sources of a mixture: given by weights, or by the sizes of the sources."""

import math
from collections.abc import Iterator, Mapping

from bert_jax.config.data import DataConfig
from bert_jax.errors import UsageError, brief, some


def problems(options: DataConfig) -> Iterator[tuple[str, str]]:
    """Yields the name of each option that is impossible for any sources, and a message."""
    text = options.source_weights
    try:
        found = weights(text)
    except ValueError as error:
        yield "source_weights", f"is {brief(text)}: {error}"
        return
    if found and not any(found.values()):
        yield "source_weights", f"is {brief(text)}: no source has any rows"
    if found and options.source_temperature != 1:
        found = f"is {options.source_temperature:g}"
        yield "source_temperature", f"{found}, which has an effect without source_weights only"


def weights(text: str) -> dict[str, float]:
    """Returns the weights of sources by name: {"wiki": 3.0, "code": 1.0} for `wiki=3,code=1`.

    Raises ValueError, with the part that is wrong.
    """
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (piece.strip() for piece in part.partition("="))
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not name or name in found or not 0 <= value < math.inf:
            raise ValueError(
                f"{part} is not a weight; write NAME=WEIGHT once for each source, such as "
                "wiki=3,code=1, with weights from 0"
            )
        found[name] = value
    return found


def shares(options: DataConfig, tokens: Mapping[str, int]) -> list[float]:
    """Returns the share of the rows of each source, in order; the shares add up to 1.

    `tokens` are the numbers of tokens of the sources; a single source has all rows. Raises
    UsageError if the weights do not name these sources.
    """
    named = weights(options.source_weights)
    if len(tokens) < 2 and not named:
        return [1.0]
    if named and (len(tokens) < 2 or named.keys() != tokens.keys()):
        raise UsageError(
            f"data.source_weights is {brief(options.source_weights)}, but the sources are "
            f"{some(tokens)}; name several sources, and give each a weight (0 leaves a source out)"
        )
    if named:
        each = [named[name] for name in tokens]
    else:
        each = [count ** (1 / options.source_temperature) for count in tokens.values()]
    return [share / sum(each) for share in each]
