"""Warns about text that a vocabulary has no tokens for, from which a model learns nothing."""

import numpy as np

from bert_jax.data.tokenizer.tokenizer import SpecialIds
from bert_jax.progress import note

# A published vocabulary has a far lower share on the text it was made for.
WARN_ABOVE = 0.01


def note_unknown(unknown: int, of: int, what: str, remedy: str) -> None:
    """Warns if more than 1 % of `what`, such as the tokens of a text, are the unknown token:
    `unknown` of `of`. `remedy` is the fix.
    """
    if unknown > WARN_ABOVE * of:
        note(f"warning: {100 * unknown / of:.1f} % of {what} are [UNK]; {remedy}")


def note_unknown_ids(ids: np.ndarray, special: SpecialIds, what: str = "the text") -> None:
    """Warns as `note_unknown` does; `ids` are model inputs of any shape, with padding."""
    is_text = ~np.isin(ids, [special.pad, special.cls, special.sep])
    note_unknown(
        int(np.count_nonzero(is_text & (ids == special.unk))),
        int(np.count_nonzero(is_text)),
        f"the tokens of {what}",
        "the vocabulary lacks these words or characters, and the model cannot read them",
    )
