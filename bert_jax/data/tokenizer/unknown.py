"""Text that a vocabulary has no sub-words for, of which a model learns and says nothing."""

import numpy as np

from bert_jax.data.tokenizer.tokenizer import SpecialIds
from bert_jax.progress import note

# A published vocabulary leaves far less of the text it was made for.
WARN_ABOVE = 0.01


def note_unknown(unknown: int, of: int, what: str, remedy: str) -> None:
    """Warns if more than a hundredth of `what`, such as the sub-words of a text, are the unknown
    token.

    `unknown` of so many are; `remedy` says what to do.
    """
    if unknown > WARN_ABOVE * of:
        note(f"warning: {100 * unknown / of:.1f} % of {what} are [UNK]; {remedy}")


def note_unknown_ids(ids: np.ndarray, special: SpecialIds, what: str = "the text") -> None:
    """Warns, as `note_unknown`, of texts to be read by a model; `ids` of any shape, filled up with
    padding.
    """
    around = [special.pad, special.cls, special.sep]
    note_unknown(
        int(np.count_nonzero(ids == special.unk)),
        int(ids.size - np.count_nonzero(np.isin(ids, around))),
        f"the sub-words of {what}",
        "its vocabulary lacks these words or characters, and the model reads nothing there",
    )
