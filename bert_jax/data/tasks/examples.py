"""Examples of several texts, such as a query and its documents: one row for each example, in which
the texts follow each other, each with its own positions and `sequence_ids`.

Dims: N examples, T texts of an example, L row length.
"""

from collections.abc import Sequence

import numpy as np

from bert_jax.data.tasks.encode_rows import LONGER, Features, RowArrays, note_cut
from bert_jax.data.tasks.tables import TextRow
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UsageError


def encode_examples(
    rows: Sequence[TextRow],
    tokenizer: Tokenizer,
    *,
    length: int,
    prompts: Sequence[str],
    remedy: str = LONGER,
) -> Features:
    """Returns `[CLS] text [SEP]` of each text of a row, of at most `length` tokens, one after the
    other. `prompts` come before the texts, one for each.

    A note says how many texts are cut, with `remedy`. Raises UsageError that names the row with a
    text without tokens.
    """
    if length < 3:
        raise UsageError(f"`length` {length}: it must be at least 3")
    special, count = tokenizer.special, len(prompts)
    encoded = [
        tokenizer.encode_sentences([prompts[text] + row.texts[text] for row in rows])
        for text in range(count)
    ]
    empty = [len(ids) for ids in tokenizer.encode_sentences(list(prompts))]
    lengths = np.zeros((len(rows), count), np.int32)
    kept: list[list[int]] = []
    cut = 0
    for number, (row, texts) in enumerate(zip(rows, zip(*encoded, strict=True), strict=True)):
        ids: list[int] = []
        for text, tokens in enumerate(texts):
            if len(tokens) <= empty[text]:
                raise UsageError(f"{row.location}: text {text + 1} has no tokens; remove the row")
            cut += len(tokens) > length - 2
            ids += [special.cls, *tokens[: length - 2], special.sep]
            lengths[number, text] = min(len(tokens), length - 2) + 2
        kept.append(ids)
    note_cut(cut, count * len(rows), "texts", limit=length, remedy=remedy)
    found = RowArrays(len(rows), -(-max(map(len, kept)) // 8) * 8, tokenizer)
    for number, ids in enumerate(kept):
        found.put(number, ids, [])
    return found.features(text_lengths=lengths)
