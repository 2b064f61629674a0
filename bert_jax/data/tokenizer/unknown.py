"""Text that a vocabulary has no sub-words for, of which a model learns and says nothing."""

import unicodedata

import numpy as np

from bert_jax.data.tokenizer.tokenizer import SpecialIds, Tokenizer
from bert_jax.progress import note

# A published vocabulary leaves far less of the text it was made for.
WARN_ABOVE = 0.01
# From this share of the words on, letters in parts are said.
_FEW_IN_PARTS = 0.001


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
    is_text = ~np.isin(ids, [special.pad, special.cls, special.sep])
    note_unknown(
        int(np.count_nonzero(is_text & (ids == special.unk))),
        int(np.count_nonzero(is_text)),
        f"the sub-words of {what}",
        "its vocabulary lacks these words or characters, and the model reads nothing there",
    )


def note_letters_in_parts(text: str, tokenizer: Tokenizer) -> None:
    """Notes letters that a text has in parts, such as a and a mark for \u00e4 (Unicode's NFD, as in
    file names of a Mac), where they become other sub-words than the letter does.
    """
    words = text.split()
    found = [word for word in words if not unicodedata.is_normalized("NFC", word)]
    distinct = list(dict.fromkeys(found))
    whole = [unicodedata.normalize("NFC", word) for word in distinct]
    both = zip(*map(tokenizer.encode_sentences, (distinct, whole)), strict=True)
    other = {word for word, (ours, theirs) in zip(distinct, both, strict=True) if ours != theirs}
    count = sum(word in other for word in found)
    if count > _FEW_IN_PARTS * len(words):
        examples = ", ".join([word for word in distinct if word in other][:3])
        note(
            f"{count / len(words):.1%} of the words have letters in parts ({examples}), as in "
            "Unicode's NFD: they are other sub-words than the same letters in one; convert the "
            "text to NFC, with 'uconv -x nfc' say"
        )
