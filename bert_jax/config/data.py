"""The section of a config that says how token ids become batches."""

from typing import Annotated, Literal

from msgspec import Meta

from bert_jax.config.fields import Count, Positive, Share, section, setting
from bert_jax.registry import MASKINGS, SEQUENCE_FORMATS


@section
class DataConfig:
    """How ids become masked sentence pairs (google-research/bert create_pretraining_data.py)."""

    short_seq_prob: Share = setting(
        0.1, "Share of documents with pairs of a shorter length (rows `sentence_pairs`)."
    )
    random_next_prob: Share = setting(
        0.5,
        "Share of pairs with a second segment from another document (rows `sentence_pairs`), "
        "besides those for which the document ends.",
    )
    masked_lm_prob: Annotated[float, Meta(gt=0, le=1)] = setting(
        0.15, "Share of a row's tokens to predict, up to the phase's `max_predictions`."
    )
    mask_token_prob: Share = setting(0.8, "Share of the predicted tokens that become `[MASK]`.")
    random_token_prob: Share = setting(
        0.1, "Share of the predicted tokens that become a random id; the rest stay as they are."
    )
    num_workers: Count = setting(2, "Threads that make batches ahead of the step.", free=True)
    prefetch: Count = setting(4, "Batches that may wait for the step on the host.", free=True)
    verify: Literal["full", "sizes"] = setting(
        "full",
        "What is checked of the corpus at every start: `full` compares "
        "[checksums](data.md#damage-is-found-before-step-1), `sizes` only sizes.",
        free=True,
    )
    sequence_format: str = setting(
        "sentence_pairs",
        "How documents become rows ([rows](lineage.md#rows)).",
        choices=SEQUENCE_FORMATS,
    )
    masking: str = setting(
        "tokens",
        "Which tokens of a row are predicted: `tokens` draws each independently, `whole_words` all "
        "tokens of a word or none (BERT's whole-word masking), `spans` up to ten consecutive "
        "words, 3.8 on average (SpanBERT).",
        choices=MASKINGS,
    )
    packing: Literal["none", "best_fit"] = setting(
        "none",
        "Whether sequences share the rows of training: with `best_fit` a row has as many as fit "
        "([packing](lineage.md#packing)).",
    )
    source_weights: str = setting(
        "",
        "Shares of the rows of a batch that [several corpora](data.md#several-corpora) have: "
        "`wiki=3,code=1` names each with its weight, and 0 leaves one out. Empty: "
        "`source_temperature` decides.",
    )
    source_temperature: Positive = setting(
        1.0,
        "Without weights a source has rows in proportion to its tokens to the power of 1 / "
        "temperature: with 1 all text is seen equally often, with more small sources more often.",
    )
