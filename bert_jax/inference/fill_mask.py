"""Fill masked words in: the quickest look at what a masked language model has learned."""

import itertools
from dataclasses import dataclass

import numpy as np

from bert_jax.data.tasks.encode_rows import Batches, encode_texts
from bert_jax.data.tasks.tables import TextRow
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.unknown import note_unknown_ids
from bert_jax.errors import UsageError
from bert_jax.inference.forward import Forward, in_float32
from bert_jax.pretrained.load import LoadedCheckpoint, require_parts


@dataclass(frozen=True)
class Prediction:
    """One candidate for one masked place."""

    probability: float
    token: str
    text: str


def forward_of(checkpoint: LoadedCheckpoint) -> Forward:
    """Returns what computes the logits of masked places, one text at a time."""
    return Forward(in_float32(checkpoint.config), "mlm_logits", batch_size=1, mesh=checkpoint.mesh)


def fill_mask(
    checkpoint: LoadedCheckpoint,
    tokenizer: Tokenizer,
    text: str,
    *,
    top: int = 5,
    forward: Forward | None = None,
) -> list[list[Prediction]]:
    """For each [MASK] in `text`, in order, its `top` most probable tokens, best first.

    Each place is filled on its own; in `Prediction.text` the other masks stay. `forward` is
    `forward_of(checkpoint)`, which is compiled once for many texts. Raises UsageError if there is
    no mask, no masked-LM head, or more tokens than the model has positions.
    """
    ids = tokenizer.encode(text)
    positions = [i for i, token in enumerate(ids) if token == tokenizer.special.mask]
    mask = tokenizer.tokens([tokenizer.special.mask])[0]
    if not positions:
        raise UsageError(f"{text!r} has no {mask}; write {mask} where a word should be guessed")
    require_parts(checkpoint, "mlm")
    model = checkpoint.config.model
    if len(ids) > model.max_position_embeddings:
        raise UsageError(
            f"the text has {len(ids)} tokens, the model {model.max_position_embeddings} positions; "
            "shorten it"
        )
    note_unknown_ids(np.asarray(ids), tokenizer.special, what=repr(text))
    forward = forward_of(checkpoint) if forward is None else forward
    features = encode_texts(
        [TextRow("the text", (text,), None, "")],
        tokenizer,
        length=model.max_position_embeddings,
        truncation="never",
    )
    size = forward.size(1)  # a batch lies over all devices; copies fill it
    batch = Batches(features, size=size)(np.arange(1))
    batch["mlm_positions"] = np.tile(np.asarray(positions, np.int32), (size, 1))
    (logits, *_) = forward.batch(checkpoint.params, batch).astype(np.float64)
    logits = logits[:, : tokenizer.vocab_size]
    probabilities = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
    results = []
    for position, row_probabilities in zip(positions, probabilities, strict=True):
        best = np.argsort(-row_probabilities, kind="stable")[:top]
        results.append(
            [
                Prediction(
                    probability=float(row_probabilities[token]),
                    token=tokenizer.tokens([int(token)])[0],
                    text=_text(tokenizer, [*ids[1:position], int(token), *ids[position + 1 : -1]]),
                )
                for token in best
            ]
        )
    return results


def _text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Readable text of `ids` with the masks, which decoding alone leaves out."""
    mask = tokenizer.special.mask
    pieces: list[str] = []
    for is_mask, run in itertools.groupby(ids, key=mask.__eq__):
        part = list(run)
        pieces += tokenizer.tokens(part) if is_mask else [tokenizer.decode(part)]
    return " ".join(pieces)
