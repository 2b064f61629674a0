"""Encodes the texts of a task as rows of ids, and makes batches of rows.

Dims: N rows, L sequence length, B rows of a batch.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data import counter_rng
from bert_jax.data.pairs.texts import places_of_texts
from bert_jax.data.pretraining.dealing import Dealing
from bert_jax.data.tasks.conll import Sentence
from bert_jax.data.tasks.tables import TextRow
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UsageError
from bert_jax.progress import note

# Marks the tokens that do not begin a word: padding, [CLS], [SEP] and the later tokens of a word.
NO_WORD = -1


@dataclass(frozen=True)
class Features:
    """Rows of a task. `labels` and `weights` are inputs of the loss, None if there are no labels.

    `input_ids`, `token_type_ids` int32 `[N, L]`; `lengths` int32 `[N]`. `labels` is int32 or
    float32 `[N]` for a class or a number, int32 `[N, L]` for one class per token, int32 `[N, 2]`
    for a span; `weights` float32 `[N]`, or `[N, L]` for classes of tokens.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray | None = None
    weights: np.ndarray | None = None
    # The tokens of each text of a row `[N, T]`, if a row has several texts with separate positions.
    text_lengths: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.lengths)


class Batches:
    """Batches of `size` rows of `features`, padded to one of a few lengths."""

    def __init__(self, features: Features, *, size: int):
        self._features, self._size = features, size
        self.lengths = batch_lengths(features, size=size)

    def __call__(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the batch of the given rows, padded to `size` with rows of weight 0."""
        filled = np.concatenate([rows, np.zeros(self._size - len(rows), rows.dtype)])
        longest = int(self._features.lengths[filled].max())
        length = next(n for n in self.lengths if n >= longest)
        batch = arrays_of(self._features, filled, length=length)
        if "weights" in batch:
            batch["weights"][len(rows) :] = 0.0
        return batch


def arrays_of(features: Features, rows: np.ndarray, *, length: int) -> dict[str, np.ndarray]:
    """Returns the four inputs of a batch of the given rows, cut to `length`, and, if there are
    labels, copies of `labels` and `weights`.
    """
    position = np.arange(length, dtype=np.int32)
    batch = {
        "input_ids": features.input_ids[rows, :length],
        "token_type_ids": features.token_type_ids[rows, :length],
        "position_ids": np.tile(position, (len(rows), 1)),
        "sequence_ids": (position < features.lengths[rows, None]).astype(np.int32),
    }
    if features.text_lengths is not None:
        batch |= places_of_texts(features.text_lengths[rows], length=length)
    if features.labels is not None and features.weights is not None:
        cut = (rows, slice(length)) if features.weights.ndim == 2 else (rows,)
        batch |= {"labels": features.labels[cut], "weights": features.weights[cut]}
    return batch


def batch_lengths(features: Features, *, size: int) -> tuple[int, ...]:
    """Returns the lengths to which batches are padded, ascending: at most three, since each length
    is compiled.

    They are multiples of 8 (or the full width), and the last one holds the longest row. They
    minimize the padding in batches of randomly drawn rows.
    """
    full = features.input_ids.shape[1]
    limits = np.minimum(np.arange(8, int(features.lengths.max()) + 8, 8), full)
    up_to = np.searchsorted(np.sort(features.lengths), limits, side="right") / len(features)
    fits = up_to**size  # the share of batches with all rows within a limit
    short, middle = np.meshgrid(np.arange(len(limits)), np.arange(len(limits)), indexing="ij")
    expected = (
        limits[short] * fits[short]
        + limits[middle] * (fits[middle] - fits[short])
        + limits[-1] * (1 - fits[middle])
    )
    chosen = np.argmin(np.where(short <= middle, expected, np.inf))
    return tuple(np.unique(limits[[short.flat[chosen], middle.flat[chosen], -1]]).tolist())


def training_rows(step: int, *, rows: int, batch_size: int, seed: int) -> np.ndarray:
    """Returns the rows of the batch of `step`: a function of the arguments only.

    Each epoch has another order. Epochs follow each other without a break (as
    google-research/bert run_classifier.py repeats its records), so a batch may contain the end of
    one epoch and the beginning of the next.
    """
    numbers = step * batch_size + np.arange(batch_size)
    chosen = np.empty(batch_size, np.int64)
    for epoch in np.unique(numbers // rows).tolist():
        of_epoch = numbers // rows == epoch
        key = counter_rng.derive(seed, epoch)
        chosen[of_epoch] = counter_rng.permute(numbers[of_epoch] % rows, rows, key)
    return chosen


def rows_of_steps(
    sources: Sequence[str],
    *,
    shares: Callable[[dict[str, int]], Sequence[float]],
    batch_size: int,
    seed: int,
) -> Callable[[int], np.ndarray]:
    """Returns a function from a step to the rows of its batch, which have one source.

    `sources` has the source of each row. `shares` returns the share of each source in the batches
    over time, given the numbers of rows.
    """
    names, numbers = np.unique(sources, return_inverse=True)
    sizes = np.bincount(numbers).tolist()
    parts = shares(dict(zip(names.tolist(), sizes, strict=True)))
    if len(parts) == 1:
        return functools.partial(training_rows, rows=sizes[0], batch_size=batch_size, seed=seed)
    dealing, keys = Dealing(parts, 1), [counter_rng.derive(seed, n) for n in range(len(parts))]
    members = [np.flatnonzero(numbers == number) for number in range(len(parts))]

    def rows(step: int) -> np.ndarray:
        before, after = dealing.before(np.array([step, step + 1]))
        source = int(np.argmax(after - before))
        chosen = training_rows(
            int(before[source]), rows=sizes[source], batch_size=batch_size, seed=keys[source]
        )
        return members[source][chosen]

    return rows


# --- one or two texts ----------------------------------------------------------------------------


def note_cut(cut: int, rows: int, what: str, *, limit: int, remedy: str) -> None:
    """Prints a note with the number of texts that were truncated to `limit` tokens, if any."""
    if cut:
        many = f"{cut:,} of {rows:,} {what} have more than {limit} tokens"
        note(f"{many} and are truncated; {remedy}")


# The fix for truncated texts: an option, fine-tuning again, or none.
LONGER = "a longer `length` reads more"
LONGER_TRAINED = "fine-tuning with a longer `length` reads more"
NO_MORE = "the model has no positions for more"


def encode_texts(
    rows: Sequence[TextRow],
    tokenizer: Tokenizer,
    *,
    length: int,
    truncation: str,
    remedy: str = LONGER,
    width: int = 0,
) -> Features:
    """Returns `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, cut to `length` tokens.

    Arrays are as wide as the longest row (rounded up to 8), and at least `width`. `truncation`:
    "longest_first" removes tokens from the end of the longer text, one at a time (from the second
    if both are equal; google-research/bert run_classifier.py); "only_first" and "only_second"
    shorten one text; "never" raises an error. A note reports the number of truncated rows, with
    `remedy`. Raises UsageError for a length that cannot hold a token of each text, and for a row
    with texts that cannot be made to fit.
    """
    sides = len(rows[0].texts)
    separators = tokenizer.pair_separators
    encoded = [
        tokenizer.encode_sentences([row.texts[side] for row in rows]) for side in range(sides)
    ]
    room = length - (2 if sides == 1 else 2 + separators)
    if room < sides:
        raise UsageError(f"`length` {length}: it must be at least {length - room + sides}")
    kept: list[list[int]] = []
    cut = 0
    for row, texts in zip(rows, zip(*encoded, strict=True), strict=True):
        keep = _kept([len(ids) for ids in texts], room, truncation)
        if keep is None:
            raise UsageError(
                f"{row.location}: {' + '.join(str(len(ids)) for ids in texts)} tokens do not fit "
                f"in {room} with `truncation` {truncation}; increase `length` or change the latter"
            )
        cut += sum(keep) < sum(len(ids) for ids in texts)
        kept.append(keep)
    longest = length - room + max(map(sum, kept))
    found = RowArrays(len(rows), max(width, min(length, -(-longest // 8) * 8)), tokenizer)
    for number, (texts, keep) in enumerate(zip(zip(*encoded, strict=True), kept, strict=True)):
        first = [tokenizer.special.cls, *texts[0][: keep[0]], tokenizer.special.sep]
        second = []
        if sides == 2:
            between = [tokenizer.special.sep] * (separators - 1)
            first += between
            second = [*texts[1][: keep[1]], tokenizer.special.sep]
        found.put(number, first, second)
    note_cut(cut, len(rows), "texts", limit=length, remedy=remedy)
    return found.features()


def _kept(sizes: list[int], room: int, truncation: str) -> list[int] | None:
    """Returns how many tokens of each text are kept; None if the texts cannot be made to fit."""
    excess = sum(sizes) - room
    if excess <= 0:
        return sizes
    if truncation == "never":
        return None
    if len(sizes) == 1:
        return [room]
    if truncation == "longest_first":
        a, b = sizes
        # Each text gets half, plus what the other leaves; the first text gets an odd token.
        first = max(room - b, min(a, (room + 1) // 2))
        return [first, room - first]
    cut = 0 if truncation == "only_first" else 1
    kept = sizes[cut] - excess
    if kept < 0:
        return None
    return [kept, sizes[1]] if cut == 0 else [sizes[0], kept]


class RowArrays:
    """Arrays that are filled row by row."""

    def __init__(self, count: int, length: int, tokenizer: Tokenizer):
        self._ids = np.full((count, length), tokenizer.special.pad, np.int32)
        self._types = np.zeros((count, length), np.int32)
        self._lengths = np.zeros(count, np.int32)

    def put(self, row: int, first: list[int], second: list[int]) -> None:
        """Puts token type 0 for the ids of `first`, 1 for those of `second`."""
        used = len(first) + len(second)
        self._ids[row, :used] = first + second
        self._types[row, len(first) : used] = 1
        self._lengths[row] = used

    def features(self, **others: np.ndarray) -> Features:
        return Features(self._ids, self._types, self._lengths, **others)


# --- a tag for each word -------------------------------------------------------------------------


@dataclass(frozen=True)
class WordRows:
    """Rows of sentences; a long sentence has several rows.

    `sentences` int32 `[N]` is the sentence of each row; `words` int32 `[N, L]` is the word that
    begins at each token, or `NO_WORD`.
    """

    features: Features
    sentences: np.ndarray
    words: np.ndarray


def encode_words(
    sentences: Sequence[Sentence],
    tokenizer: Tokenizer,
    *,
    length: int,
    labels: Sequence[str] | None,
) -> WordRows:
    """Encodes each word of the sentences separately; the first token of a word has its label.

    No word is dropped: a sentence with more than `length` - 2 tokens becomes several rows, split
    between words; a single word with more tokens is truncated. A word without tokens becomes the
    unknown token. A word is encoded with the space before it if ids depend on the space. `labels`
    numbers the tags; None omits them. Raises UsageError for another tag, with the sentence's name.
    """
    distinct = sorted({word for sentence in sentences for word in sentence.words})
    room = length - 2
    unknown = [tokenizer.special.unk]
    encoded = tokenizer.encode_sentences([tokenizer.word_prefix + word for word in distinct])
    pieces = {word: (ids or unknown)[:room] for word, ids in zip(distinct, encoded, strict=True)}
    note_cut(
        sum(len(ids) > room for ids in encoded),
        len(distinct),
        "different words",
        limit=room,
        remedy=LONGER if labels is not None else LONGER_TRAINED,
    )
    parts: list[tuple[int, list[int]]] = []  # sentence, its words in this row
    for number, sentence in enumerate(sentences):
        part: list[int] = []
        used = 0
        for index, word in enumerate(sentence.words):
            if used + len(pieces[word]) > room:
                parts.append((number, part))
                part, used = [], 0
            part.append(index)
            used += len(pieces[word])
        parts.append((number, part))
    found = RowArrays(len(parts), length, tokenizer)
    words = np.full((len(parts), length), NO_WORD, np.int32)
    targets = np.zeros((len(parts), length), np.int32)
    numbers = {} if labels is None else {label: i for i, label in enumerate(labels)}
    for row, (number, part) in enumerate(parts):
        sentence, ids = sentences[number], [tokenizer.special.cls]
        for index in part:
            words[row, len(ids)] = index
            if labels is not None and sentence.tags is not None:
                targets[row, len(ids)] = _number(sentence, sentence.tags[index], numbers)
            ids += pieces[sentence.words[index]]
        found.put(row, [*ids, tokenizer.special.sep], [])
    known = {} if labels is None else {"labels": targets, "weights": np.float32(words != NO_WORD)}
    owners = np.array([number for number, _ in parts], np.int32)
    return WordRows(found.features(**known), owners, words)


def _number(sentence: Sentence, tag: str, numbers: dict[str, int]) -> int:
    if tag not in numbers:
        raise UsageError(
            f"{sentence.location}: the tag {tag!r} does not occur in the training file, which has "
            f"{', '.join(numbers)}; correct it"
        )
    return numbers[tag]
