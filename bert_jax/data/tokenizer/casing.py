"""Decides whether a bare vocabulary lower-cases text: its entries can only hint.

A cased vocabulary has a capital beside nearly every small letter, and many words with one: of the
entries with letters of either case 31 % in `bert-base-cased`, none in `bert-base-uncased`. A few
entries that somebody has renamed prove nothing.
"""

from collections.abc import Container, Sequence

from bert_jax.errors import UsageError

# Shares of the entries that have a letter of either case: below the first a vocabulary
# lower-cases, from the second on it keeps case.
_FEW, _MANY = 0.01, 0.05


def decide(tokens: Sequence[str], special: Container[str], source: str) -> tuple[bool, str]:
    """Returns whether the text of a vocabulary is lower-cased, and what speaks for it, unless
    nothing speaks against it.

    Entries in brackets do not count. Raises UsageError where the others can be read either way.
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
        f"{source} does not say whether it lower-cases text, and {of_all}: too few for a cased "
        "vocabulary, too many for chance. Say it: `lowercase`, or do_lower_case in a "
        "tokenizer_config.json beside it"
    )
