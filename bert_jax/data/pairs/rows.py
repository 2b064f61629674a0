"""Rows with two texts of one document each: pairs without labels, from raw text.

A row is `[CLS] query [SEP] [CLS] document [SEP]`; neither text attends to the other (texts.py).
Contriever's crops, and adjacent spans of a passage, are those of Izacard et al. 2022
(arXiv:2112.09118, section 3.1) and Gao and Callan 2022 (arXiv:2108.05540); titles and bodies those
of Wang et al. 2022 (arXiv:2212.03533, E5); one text twice is SimCSE (Gao et al. 2021,
arXiv:2104.08821), where dropout makes the difference.
"""

from collections.abc import Callable

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Split
from bert_jax.data.pairs.texts import places_of_texts
from bert_jax.data.pretraining.one_segment import documents
from bert_jax.data.pretraining.spans import SpanPlan, SpanRows, copy_spans
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import UsageError

# Shares of a passage that a crop may have (facebookresearch/contriever, ratio_min and ratio_max).
_SHORTEST_CROP, _LONGEST_CROP = 0.05, 0.5


class PairPlan(SpanPlan):
    """Rows with two spans, each with [CLS] and [SEP]."""

    @property
    def lengths(self) -> np.ndarray:
        return super().lengths + 1  # the second [CLS]


# The first token of each query, its length, and the same of each document: int64 `[R]`.
_Spans = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class PairRows(SpanRows):
    """Rows with a query and a document.

    `spans(split, room, key)` chooses both; together they have at most `room` tokens.
    """

    num_special = 4
    texts = 2

    def __init__(self, spans: Callable[[Split, int, int], _Spans]):
        self._spans = spans

    def plan(
        self, split: Split, *, options: DataConfig, sequence_length: int, key: int
    ) -> SpanPlan:
        """Returns the rows of one epoch."""
        found = self._spans(split, sequence_length - self.num_special, key)
        start, length = (np.stack(found[i::2], axis=1).reshape(-1) for i in range(2))
        rows = start.size // 2
        if not rows:
            raise UsageError(f"{split.name}: no document is long enough for a pair of texts")
        row, zeros = np.repeat(np.arange(rows), 2), np.zeros(2 * rows, np.uint8)
        return PairPlan.of(row, start, length, zeros, np.ones(2 * rows, bool))

    def read(
        self, split: Split, plan: SpanPlan, *, vocabulary: Vocabulary, sequence_length: int
    ) -> dict[str, np.ndarray]:
        """Returns what rows of one segment have, and `text_positions` int32 `[R, 2]`."""
        rows, special = len(plan), vocabulary.special
        size = plan.length.astype(np.int64).reshape(rows, 2) + 2
        places = places_of_texts(size, length=sequence_length)
        first = places["text_positions"] + sequence_length * np.arange(rows)[:, None]
        input_ids = np.full((rows, sequence_length), special.pad, np.int32)
        flat = input_ids.reshape(-1)
        flat[first] = special.cls
        flat[first + size - 1] = special.sep
        target = (first + 1).reshape(-1)
        copy_spans(split, start=plan.start, length=plan.length, target=target, out=flat)
        types = np.zeros_like(input_ids)
        lengths = plan.lengths
        return {"input_ids": input_ids, "token_type_ids": types, "lengths": lengths, **places}


def _passages(split: Split, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first token and the length of each passage: documents cut into `room` tokens and
    a rest. Passages of one token are left out.
    """
    begin = documents(split, room)
    length = np.diff(begin, append=split.sentence_starts[-1])
    is_kept = length > 1
    return begin[is_kept], length[is_kept]


def _crops(split: Split, room: int, key: int) -> _Spans:
    """Two independent crops of a passage."""
    begin, length = _passages(split, room)
    shortest = np.maximum(np.ceil(_SHORTEST_CROP * length).astype(np.int64), 1)
    longest = np.maximum((_LONGEST_CROP * length).astype(np.int64), shortest)

    def crop(text: int) -> tuple[np.ndarray, np.ndarray]:
        keys = counter_rng.bits(counter_rng.derive(key, text), np.arange(begin.size))
        size = shortest + counter_rng.randint(counter_rng.bits(keys, 0), longest - shortest + 1)
        start = begin + counter_rng.randint(counter_rng.bits(keys, 1), length - size + 1)
        return start, size

    return *crop(0), *crop(1)


def _adjacent(split: Split, room: int, key: int) -> _Spans:
    """A passage in two, at the end of the sentence that is nearest to its middle."""
    begin, length = _passages(split, room)
    sentences, _ = split.starts()
    middle = begin + length // 2
    after = np.searchsorted(sentences, middle)
    ends = np.stack([sentences[np.maximum(after - 1, 0)], sentences[after]])
    nearest = np.where(middle - ends[0] < ends[1] - middle, ends[0], ends[1])
    is_inside = (nearest > begin) & (nearest < begin + length)
    cut = np.where(is_inside, nearest, middle)
    return begin, cut - begin, cut, begin + length - cut


def _title_body(split: Split, room: int, key: int) -> _Spans:
    """The first sentence of a document, and what follows it. Documents of one sentence are left
    out.
    """
    sentences, of_documents = split.starts()
    first = of_documents[:-1][np.diff(of_documents) > 1]
    last = of_documents[1:][np.diff(of_documents) > 1]
    begin, body, end = sentences[first], sentences[first + 1], sentences[last]
    title = np.minimum(body - begin, room // 2)
    return begin, title, body, np.minimum(end - body, room - title)


def _same(split: Split, room: int, key: int) -> _Spans:
    """A passage twice."""
    begin, length = _passages(split, room // 2)
    return begin, length, begin, length


CROPS = PairRows(_crops)
ADJACENT = PairRows(_adjacent)
TITLE_BODY = PairRows(_title_body)
SAME = PairRows(_same)
