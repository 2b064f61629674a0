"""Predicts the most probable tokens for masked words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data.tasks.encode_rows import Batches, RowArrays
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.unknown import note_unknown_ids
from bert_jax.data.tokenizer.words import readable
from bert_jax.errors import UsageError
from bert_jax.inference.forward import Forward, in_float32
from bert_jax.pretrained.load import LoadedCheckpoint, require_parts


@dataclass(frozen=True)
class Prediction:
    """One candidate for one mask. `text` is the given text with the candidate in place of the mask,
    with the spaces of the decoded ids; `token` is the candidate in the form of `readable`. A
    special token is not inserted.
    """

    probability: float
    token: str
    text: str


def forward_of(checkpoint: LoadedCheckpoint) -> Forward:
    """Returns the forward pass to the logits of masked positions, one text at a time."""
    return Forward(in_float32(checkpoint.config), "mlm_logits", batch_size=1, mesh=checkpoint.mesh)


def fill_mask(
    checkpoint: LoadedCheckpoint,
    tokenizer: Tokenizer,
    text: str,
    *,
    top: int = 5,
    forward: Forward | None = None,
) -> list[list[Prediction]]:
    """Returns, for each [MASK] in `text`, in order, its `top` most probable tokens, best first.

    Each mask is predicted separately; in `Prediction.text` the other masks remain. `forward` is
    `forward_of(checkpoint)`, compiled once for many texts. Raises UsageError if there is no mask,
    no masked-LM head, or more tokens than the model has positions.
    """
    ids, spans = tokenizer.encode_with_offsets(text)
    masked = [i for i, token in enumerate(ids) if token == tokenizer.special.mask]
    mask = tokenizer.tokens([tokenizer.special.mask])[0]
    if not masked:
        raise UsageError(f"{text!r} has no {mask}; put {mask} in place of the word to predict")
    require_parts(checkpoint, "mlm")
    note_unknown_ids(np.asarray(ids), tokenizer.special, what=repr(text))
    forward = forward_of(checkpoint) if forward is None else forward
    probabilities = probabilities_of(checkpoint, tokenizer, ids, forward=forward)
    results = []
    for place, row_probabilities in zip(masked, probabilities, strict=True):
        best = np.argsort(-row_probabilities, kind="stable")[:top]
        results.append(
            [
                Prediction(
                    float(row_probabilities[token]),
                    name,
                    _filled(tokenizer, text, spans[: place + 1], token),
                )
                for token, name in zip(
                    best.tolist(), readable(tokenizer, best.tolist()), strict=True
                )
            ]
        )
    return results


def probabilities_of(
    checkpoint: LoadedCheckpoint, tokenizer: Tokenizer, ids: list[int], *, forward: Forward
) -> np.ndarray:
    """Returns the probabilities of all tokens at each mask in the ids of a text with at least one
    mask: float64 `[masks, vocab_size]`. Raises UsageError if the model has too few positions.
    """
    row = [tokenizer.special.cls, *ids, tokenizer.special.sep]
    limit = checkpoint.config.model.max_position_embeddings
    if len(row) > limit:
        raise UsageError(f"the text has {len(row)} tokens, the model {limit} positions; shorten it")
    arrays = RowArrays(1, min(limit, -(-len(row) // 8) * 8), tokenizer)
    arrays.put(0, row, [])
    size = forward.size(1)  # a batch covers all devices; copies fill the rest
    batch = Batches(arrays.features(), size=size)(np.arange(1))
    positions = np.flatnonzero(np.array(row) == tokenizer.special.mask).astype(np.int32)
    batch["mlm_positions"] = np.tile(positions, (size, 1))
    (logits, *_) = forward.batch(checkpoint.params, batch).astype(np.float64)
    logits = logits[:, : tokenizer.vocab_size]
    return np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))


def _filled(tokenizer: Tokenizer, text: str, spans: Sequence[tuple[int, int]], token: int) -> str:
    """Returns a text with a token in place of the mask, the last of the spans.

    The span includes the spaces that the mask consumes (`lstrip`, `rstrip`). If a token includes a
    space or joins the previous word, other spaces before the mask remain only if they are tokens,
    as in decoded text. If no token includes spaces, as in WordPiece, the spaces of the text remain,
    and words are separated.
    """
    (start, end), before = spans[-1], spans[:-1]
    marks, piece, (name,) = (
        tokenizer.word_marks,
        tokenizer.text_of(token),
        tokenizer.tokens([token]),
    )
    left, right = text[:start], text[end:]
    if marks.begins or not marks.begin(name) or not piece:
        known = max((stop for _, stop in before), default=0)
        word = piece if before else tokenizer.decode([token])
        return left[:known] + left[known:].rstrip() + word + right
    word = piece.strip()
    before_it, after_it = (
        " " * (piece[:1].isspace() and a[-1:].isalnum() and b[:1].isalnum())
        for a, b in ((left, word), (word, right))
    )
    return left + before_it + word + after_it + right
