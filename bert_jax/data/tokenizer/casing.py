"""Infers from the entries of a bare vocabulary whether it lower-cases text.

A cased vocabulary has a capital for nearly every small letter, and many words with a capital: 31 %
of the entries with cased letters in `bert-base-cased`, none in `bert-base-uncased`. A few renamed
entries are not evidence.
"""

from collections.abc import Container, Sequence

from bert_jax.errors import UsageError

# Shares of the entries with cased letters that contain a capital: below the first share a
# vocabulary lower-cases text, from the second on it keeps case.
_FEW, _MANY = 0.01, 0.05


def decide(tokens: Sequence[str], special: Container[str], source: str) -> tuple[bool, str]:
    """Returns whether a vocabulary lower-cases text, and the evidence if some entries point the
    other way, else "".

    Entries in brackets are ignored. Raises UsageError if the other entries are ambiguous.
    """
    words = [
        token
        for token in tokens
        if token not in special and not (token[0] in "[<" and token[-1] in "]>" and len(token) > 2)
    ]
    upper = [token for token in words if token != token.lower()]
    cased = sum(token.lower() != token.upper() for token in words)
    share = len(upper) / max(cased, 1)
    shown = ", ".join(map(repr, upper[:3])) + (", ..." if len(upper) > 3 else "")
    if not upper:
        return True, ""
    of_all = f"{len(upper):,} of {cased:,} entries with letters have a capital ({shown})"
    if share >= _MANY:
        return False, of_all
    capitals = sum(len(token) == 1 for token in upper)
    small = sum(len(t) == 1 and t == t.lower() != t.upper() for t in words)
    if share < _FEW and 2 * capitals < small:
        return True, f"only {of_all}"
    raise UsageError(
        f"{source} does not define whether to lower-case text, and {of_all}: too few for a cased "
        "vocabulary, too many for an uncased one. Set `lowercase`, or do_lower_case in a "
        "tokenizer_config.json in the same directory"
    )
