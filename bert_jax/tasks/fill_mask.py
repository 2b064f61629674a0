"""Fill masked words in: the quickest look at what a masked language model has learned."""

import itertools
from dataclasses import dataclass

import jax
import numpy as np

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UsageError
from bert_jax.model import heads
from bert_jax.training.workdir import LoadedCheckpoint, require_parts


@dataclass(frozen=True)
class Prediction:
    """One candidate for one masked place."""

    probability: float
    token: str
    text: str


def fill_mask(
    checkpoint: LoadedCheckpoint, tokenizer: Tokenizer, text: str, *, top: int = 5
) -> list[list[Prediction]]:
    """For each [MASK] in `text`, in order, its `top` most probable tokens, best first.

    Each place is filled on its own; in `Prediction.text` the other masks stay. Raises UsageError if
    there is no mask, or more tokens than the model has positions.
    """
    ids = tokenizer.encode(text)
    places = [i for i, token in enumerate(ids) if token == tokenizer.special.mask]
    mask = tokenizer.tokens([tokenizer.special.mask])[0]
    if not places:
        raise UsageError(f"{text!r} has no {mask}; write {mask} where a word should be guessed")
    require_parts(checkpoint, "mlm")
    model = checkpoint.config.model
    if len(ids) > model.max_position_embeddings:
        raise UsageError(
            f"the text has {len(ids)} tokens, the model {model.max_position_embeddings} positions; "
            "shorten it"
        )
    rows = jax.device_count()  # a batch lies over all devices; copies fill it
    row = np.asarray(ids, np.int32)

    def copies(values) -> np.ndarray:
        return np.tile(np.asarray(values, np.int32), (rows, 1))

    batch = {
        "input_ids": copies(row),
        "token_type_ids": copies(np.zeros_like(row)),
        "position_ids": copies(np.arange(len(row))),
        "sequence_ids": copies(np.ones_like(row)),
        "mlm_positions": copies(places),
    }
    logits = _logits(checkpoint, batch)[: len(places), : tokenizer.vocab_size]
    probabilities = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
    results = []
    for place, row_probabilities in zip(places, probabilities, strict=True):
        best = np.argsort(-row_probabilities, kind="stable")[:top]
        results.append(
            [
                Prediction(
                    probability=float(row_probabilities[token]),
                    token=tokenizer.tokens([int(token)])[0],
                    text=_text(tokenizer, [*ids[1:place], int(token), *ids[place + 1 : -1]]),
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


def _logits(checkpoint: LoadedCheckpoint, batch: dict[str, np.ndarray]) -> np.ndarray:
    """float64 `[masks, V]` of the first row."""
    from bert_jax.model.sharding import batch_sharding

    config = checkpoint.config
    arrays = jax.device_put(batch, batch_sharding(jax.sharding.get_mesh()))
    outputs = jax.jit(
        lambda params, arrays: heads.apply(
            params, arrays, config=config.model, head=config.head, compute=config.compute
        )
    )(checkpoint.params, arrays)
    return np.asarray(jax.device_get(outputs["mlm_logits"])[0], np.float64)
