"""Tag schemes: how the prefixes of tags (B-, I-, ...) mark the words of an entity.

The scheme of a file is detected, not declared. Schemes that give one tag different meanings
exclude each other.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bert_jax.data.tasks.conll import OUTSIDE, PREFIXED, Sentence
from bert_jax.errors import UsageError


@dataclass(frozen=True)
class Scheme:
    """A tag scheme.

    `broken` matches the first error in a sentence that is written as symbols: the letter B, I, E, S
    or O for each word, in lower case if the previous tag has the same entity type, and a final O.
    """

    # The prefixes in the file, in the order B, I, E, S.
    prefixes: str
    broken: str
    # The symbols of the first word of an entity.
    starts: str
    # The class of seqeval.scheme that scores the letters B, I, E, S.
    scored: str
    meaning: str


def _of_first_and_last(prefixes: str) -> Scheme:
    b, i, e, s = prefixes
    meaning = f"{b}-, {i}-, {e}- for the first, inner and last word of an entity, {s}- for one word"
    return Scheme(prefixes, "(?<=[BbIi])[^ie]|(?<![BbIi])[IiEe]", "BbSs", "IOBES", meaning)


PLAIN = "plain"
SCHEMES = {
    "IOB2": Scheme("BI", "I", "Bb", "IOB2", "B- begins every entity, and I- continues it"),
    "IOB1": Scheme(
        "BI", "B", "Ib", "IOB1", "B- only begins an entity directly after one of the same kind"
    ),
    "IOBES": _of_first_and_last("BIES"),
    "BILOU": _of_first_and_last("BILU"),
    "BMES": _of_first_and_last("BMES"),
    # Consecutive words with the same tag are one entity.
    PLAIN: Scheme("", "(?!)", "I", "IOB1", "tags have no prefix"),
}


def find_scheme(sentences: Sequence[Sentence]) -> str:
    """Returns the name of the first scheme that all sentences fit.

    Raises UsageError that names the line at which no scheme fits.
    """
    kinds: dict[bool, tuple[str, str]] = {}
    for sentence in sentences:
        for number, tag in enumerate(sentence.tags or ()):
            if tag != OUTSIDE:
                is_prefixed = PREFIXED.fullmatch(tag) is not None
                kinds.setdefault(is_prefixed, (tag, sentence.location_of(number)))
    if len(kinds) == 2:
        (prefixed, first), (plain, second) = kinds[True], kinds[False]
        raise UsageError(
            f"{second}: the tag {plain!r} has no prefix such as B- or I-, but {prefixed!r} has one "
            f"({first}); write all tags with a prefix, or none"
        )
    names = [PLAIN] if False in kinds else [name for name in SCHEMES if name != PLAIN]
    errors = {name: _first_error(sentences, name) for name in names}
    for name, error in errors.items():
        if error is None:
            return name
    # The scheme that fits the longest beginning of the file.
    name = max(names, key=lambda each: errors[each] or (0, 0))
    raise _broken(sentences, name, errors[name] or (0, 0), "which all tags before it fit")


def require_scheme(sentences: Sequence[Sentence], name: str) -> None:
    """Raises UsageError that names the line if a sentence does not fit the scheme `name`."""
    if (error := _first_error(sentences, name)) is not None:
        raise _broken(sentences, name, error, "the scheme of the training file")


def _broken(
    sentences: Sequence[Sentence], name: str, error: tuple[int, int], what: str
) -> UsageError:
    sentence, number = sentences[error[0]], error[1]
    tags = sentence.tags or ()
    tag = repr(tags[number]) if number < len(tags) else "the end of the sentence"
    after = f"after {tags[number - 1]!r}" if number else "at the start of a sentence"
    return UsageError(
        f"{sentence.location_of(min(number, len(tags) - 1))}: {tag} {after} breaks {name} "
        f"({SCHEMES[name].meaning}), {what}; correct this line, or convert the file to one scheme"
    )


def _first_error(sentences: Sequence[Sentence], name: str) -> tuple[int, int] | None:
    """Returns the numbers of the first sentence and word that break a scheme, from 0."""
    broken = re.compile(f"{SCHEMES[name].broken}|[?]")
    for number, sentence in enumerate(sentences):
        if found := broken.search(_symbols(sentence.tags or (), name) + "O"):
            return number, found.start()
    return None


def canonical(tags: Sequence[str], name: str) -> list[str]:
    """Returns the tags with the prefixes B-, I-, E-, S-; ?- for prefixes of another scheme."""
    found = []
    for tag in tags:
        if tag == OUTSIDE:
            found.append(tag)
        elif name == PLAIN:
            found.append(f"I-{tag}")
        elif parts := PREFIXED.fullmatch(tag):
            at = SCHEMES[name].prefixes.find(parts[1])
            found.append(f"{'BIES'[at] if at >= 0 else '?'}-{parts[2]}")
        else:
            found.append(f"?-{tag}")
    return found


def _symbols(tags: Sequence[str], name: str) -> str:
    found, previous = "", ""
    for tag in canonical(tags, name):
        kind = tag[2:]
        found += tag[0].lower() if kind and kind == previous else tag[0]
        previous = kind
    return found


def entity_kinds(tags: Sequence[str], name: str) -> list[str]:
    """Returns the type of each entity of a sentence, in order."""
    starts = SCHEMES[name].starts
    symbols = _symbols(tags, name)
    return [tag[2:] for tag, s in zip(canonical(tags, name), symbols, strict=True) if s in starts]
