"""The section of a config for data: how token ids become batches."""

from typing import Annotated, Literal

from msgspec import Meta

from bert_jax.config.fields import Count, Positive, Share, section, setting
from bert_jax.registry import MASKINGS, SEQUENCE_FORMATS


@section
class DataConfig:
    """How the token ids of a corpus become masked sequences."""

    short_seq_prob: Share = setting(0.1, "Fraction of documents with shorter `sentence_pairs`.")
    random_next_prob: Share = setting(
        0.5,
        "Fraction of pairs with a second segment from another document, in addition to pairs at "
        "the end of a document; for `sentence_pairs` only.",
    )
    masked_lm_prob: Annotated[float, Meta(gt=0, le=1)] = setting(
        0.15, "Fraction of the tokens to predict, up to `phases.N.max_predictions`."
    )
    mask_token_prob: Share = setting(0.8, "Fraction of the predicted tokens that become `[MASK]`.")
    random_token_prob: Share = setting(
        0.1, "Fraction of the predicted tokens that become a random token; the rest stay unchanged."
    )
    num_workers: Count = setting(2, "Threads that prepare batches.", free=True)
    prefetch: Count = setting(4, "Prepared batches to keep in host memory.", free=True)
    verify: Literal["full", "sizes"] = setting(
        "full",
        "Check of the corpus files at each start: `full` compares checksums, `sizes` only sizes.",
        free=True,
    )
    sequence_format: str = setting(
        "sentence_pairs",
        "How documents become sequences: `sentence_pairs` (BERT), `full_sentences` and "
        "`doc_sentences` across or within documents (RoBERTa), `documents` whole documents in full "
        "sequences, `electra_segments` (ELECTRA); `crops`, `adjacent`, `title_body` and `same` "
        "make pairs of texts for `contrastive`.",
        choices=SEQUENCE_FORMATS,
    )
    masking: str = setting(
        "tokens",
        "Masking strategy: `tokens` masks each token independently, `whole_words` all tokens of a "
        "word (BERT's whole-word masking), `spans` up to ten consecutive words, 3.8 on average "
        "(SpanBERT).",
        choices=MASKINGS,
    )
    packing: Literal["none", "best_fit"] = setting(
        "none", "`best_fit` packs training sequences into rows of full length, `none` pads each."
    )
    source_weights: str = setting(
        "",
        "Sampling weights of several corpora, such as `wiki=3,code=1`; 0 omits a corpus. If "
        "empty, `data.source_temperature` sets the shares.",
    )
    source_temperature: Positive = setting(
        1.0,
        "Sampling temperature of several corpora without weights: shares are proportional to the "
        "number of tokens to the power of 1 / temperature. Above 1, small corpora are repeated "
        "more often.",
    )
