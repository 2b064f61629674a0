"""Hard negatives of pairs: texts that a model finds near a query, and that do not answer it.

The ranks and margins are those of `mine_hard_negatives` of sentence-transformers 6.2
(util/hard_negatives.py). A relative margin of 0.05 is "TopK-PercPos 95 %" of NV-Retriever
(arXiv:2407.15831), the best rule in that paper. Texts are compared without case, spaces and
punctuation (data/matching/identity.py), so that a copy of the positive is not a negative.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bert_jax.data.matching.identity import identify
from bert_jax.data.tasks.tables import TextRow
from bert_jax.errors import UsageError
from bert_jax.inference.retrieve import search, text_vectors
from bert_jax.interchange.sentence_transformers import DOCUMENT_PROMPTS, QUERY_PROMPTS
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax.progress import note

# Examples that a message has.
_EXAMPLES = 3


def usable_pairs(rows: Sequence[TextRow], *, skip_bad: bool) -> list[tuple[str, str]]:
    """Returns the pairs of two texts that negatives can be found for: not blank, and not the same.

    Raises UsageError that counts the others and shows three, or with `skip_bad` logs it.
    """
    bad: list[str] = []
    found: list[tuple[str, str]] = []
    for row in rows:
        query, positive = row.texts
        if not (query.strip() and positive.strip()):
            bad.append(f"{row.location}: a text is blank")
        elif _key(query) == _key(positive):
            bad.append(f"{row.location}: the positive is the query")
        else:
            found.append((query, positive))
    if bad:
        message = f"{len(bad):,} of {len(rows):,} pairs cannot be used: "
        message += "; ".join(bad[:_EXAMPLES])
        if not (skip_bad and found):
            raise UsageError(
                f"{message}; correct them, or leave them out with `on_bad_record` skip"
            )
        note(f"{message}; they are left out")
    return found


def mine(
    checkpoint: LoadedCheckpoint,
    pairs: Sequence[tuple[str, str]],
    documents: Iterable[str],
    *,
    negatives: int = 3,
    range_min: int = 0,
    range_max: int | None = None,
    margin: float | None = None,
    relative_margin: float | None = None,
    length: int | None = None,
) -> Iterator[dict[str, str]]:
    """Yields the distinct pairs of (query, positive) with `query`, `positive`, `negative_1`, ...

    The candidates are `documents` and all positives, each distinct text once. They are ranked by
    their cosine with the query, without the positives of the query, the query itself and what a
    margin leaves out; the negatives are the first with a rank of at least `range_min` and below
    `range_max`, from 0. With a margin, the cosine of a negative is at most that of the query's
    farthest positive minus `margin`, and minus `relative_margin` times its magnitude. By default
    `range_max` leaves room for `negatives` and all positives, or with a margin for ten times
    `negatives`.

    A pair with fewer negatives is left out, with a note. Raises UsageError if all are, and for
    ranks without room for the negatives.
    """
    for name, value, least in (("negatives", negatives, 1), ("range_min", range_min, 0)):
        if value < least:
            raise UsageError(f"`{name}` {value}: it must be at least {least}")
    if range_max is not None and range_max < range_min + negatives:
        raise UsageError(
            f"`range_max` {range_max}: it must be at least `range_min` + `negatives`, which is "
            f"{range_min + negatives}"
        )
    candidates: dict[bytes, str] = {}
    for text in (*(positive for _, positive in pairs), *documents):
        candidates.setdefault(_key(text), text)
    texts, place = [*candidates.values()], {key: row for row, key in enumerate(candidates)}
    # The first spelling of each distinct query, and of its positives by their row.
    queries: dict[bytes, str] = {}
    positives: dict[bytes, dict[int, str]] = {}
    for query, positive in pairs:
        queries.setdefault(_key(query), query)
        positives.setdefault(_key(query), {}).setdefault(place[_key(positive)], positive)
    most = max(map(len, positives.values()))
    has_margin = margin is not None or relative_margin is not None
    if range_max is None:
        range_max = range_min + negatives * (10 if has_margin else 1) + most
    both = ([*queries.values()], QUERY_PROMPTS), (texts, DOCUMENT_PROMPTS)
    vectors_QW, vectors_NW = text_vectors(checkpoint, *both, length=length)
    # The positives and the query itself may be among the nearest.
    nearest_QK, cosines_QK = search(
        vectors_QW, vectors_NW, range_max + most + 1, mesh=checkpoint.mesh
    )
    short, count = 0, 0
    for number, (key, of_query) in enumerate(positives.items()):
        farthest = float(np.min(vectors_NW[[*of_query]] @ vectors_QW[number]))
        distance = max(
            -np.inf if margin is None else margin,
            -np.inf if relative_margin is None else relative_margin * abs(farthest),
        )
        excluded = {*of_query, place.get(key)}
        ranked = [
            row
            for row, cosine in zip(nearest_QK[number].tolist(), cosines_QK[number], strict=True)
            if row not in excluded and cosine <= farthest - distance
        ]
        kept = ranked[range_min:range_max][:negatives]
        if len(kept) < negatives:
            short += len(of_query)
            continue
        count += len(of_query)
        found = {f"negative_{n}": texts[row] for n, row in enumerate(kept, 1)}
        for positive in of_query.values():
            yield {"query": queries[key], "positive": positive, **found}
    if short:
        message = (
            f"{short:,} of {short + count:,} pairs have fewer than {negatives} negatives and "
            "are left out; a larger `range_max`, a smaller margin or more `documents` give more"
        )
        if not count:
            raise UsageError(message)
        note(message)


def _key(text: str) -> bytes:
    return identify(text.encode()).words
