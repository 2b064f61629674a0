"""Infers from the entries of a bare vocabulary whether it lower-cases text.

A cased vocabulary has a capital for nearly every small letter, and many words with a capital: 31 %
of the entries with cased letters in `bert-base-cased`, none in `bert-base-uncased`. A few renamed
entries are not evidence.
"""

from collections.abc import Container, Sequence

from bert_jax.errors import UsageError, some

# Shares of the entries with cased letters that contain a capital: below the first share a
# vocabulary lower-cases text, from the second on it keeps case.
_FEW, _MANY = 0.01, 0.05


def lowers(tokens: Sequence[str], special: Container[str], source: str) -> bool:
    """Returns whether a vocabulary lower-cases text. Entries in brackets are ignored.

    Raises UsageError if the other entries are ambiguous.
    """
    words = [
        token
        for token in tokens
        if token not in special and not (token[0] in "[<" and token[-1] in "]>" and len(token) > 2)
    ]
    upper = [token for token in words if token != token.lower()]
    cased = sum(token.lower() != token.upper() for token in words)
    share = len(upper) / max(cased, 1)
    if _FEW <= share < _MANY:
        raise UsageError(
            f"{source} does not define whether to lower-case text, and {len(upper):,} of {cased:,} "
            f"entries with letters have a capital ({some(map(repr, upper), 3)}): too few for a "
            "cased vocabulary, too many for an uncased one. Set `lowercase`, or do_lower_case in a "
            "tokenizer_config.json in the same directory"
        )
    return share < _FEW
