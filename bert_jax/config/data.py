"""The section of a config that says how ids become batches."""

from bert_jax.config.fields import DATA, FREE, PRETRAINING, WithOptions, section, setting
from bert_jax.registry import MASKS, ROWS

# fmt: off
# The facts of a field stand side by side.


@section
class DataConfig(WithOptions):
    """How ids become masked sentence pairs (google-research/bert create_pretraining_data.py)."""

    short_seq_prob: float = setting(
        0.1, DATA,
        "Share of documents whose pairs aim at a shorter length (`sentence_pairs`).",
        least=0, most=1, read_by=("rows",),
    )
    random_next_prob: float = setting(
        0.5, DATA,
        "Share of pairs whose second segment comes from another document by choice "
        "(`sentence_pairs`).",
        least=0, most=1, read_by=("rows",),
    )
    masked_lm_prob: float = setting(
        0.15, DATA,
        "Share of a row's tokens to predict; at most the phase's `max_predictions` are.",
        above=0, most=1, called=("mlm_probability", "mask_rate", "mask_prob", "mlm_prob"),
    )
    mask_token_prob: float = setting(
        0.8, DATA, "Share of the predicted tokens that become `[MASK]`.", least=0, most=1
    )
    random_token_prob: float = setting(
        0.1, DATA,
        "Share of the predicted tokens that become a random id; the rest stay as they are.",
        least=0, most=1,
    )
    num_workers: int = setting(
        2, FREE._replace(finetune=PRETRAINING),
        "Threads that make batches ahead of the step.",
        least=1, called=("workers", "dataloader_num_workers"),
    )
    prefetch: int = setting(
        4, FREE._replace(finetune=PRETRAINING),
        "Batches that may wait for the step on the host.", least=1,
    )
    verify: str = setting(
        "full", FREE._replace(finetune=PRETRAINING),
        "What of the corpus is checked at every start: `full` compares "
        "[checksums](data.md#damage-is-found-before-step-1), `sizes` only sizes.",
        choices=("full", "sizes"),
    )
    rows: str = setting(
        "sentence_pairs", DATA,
        "How documents become rows ([rows](lineage.md#rows)).",
        choices=ROWS,
    )
    mask: str = setting(
        "tokens", DATA,
        "Which tokens of a row are predicted: `tokens` draws each on its own, `whole_words` all "
        "pieces of a word or none (BERT's whole-word masking), `spans` up to ten words in a row, "
        "3.8 on average (SpanBERT).",
        choices=MASKS,
    )
    packing: str = setting(
        "none", DATA,
        "Whether sequences share the rows of training: with `best_fit` a row has as many as there "
        "is room for ([lineage.md](lineage.md#packing)).",
        choices=("none", "best_fit"),
    )
    source_weights: str = setting(
        "", DATA,
        "Shares of the rows of a batch that [several corpora](data.md#several-corpora) have: "
        "`wiki=3,code=1` names each with its weight, and 0 leaves one out. Empty: "
        "`source_temperature` says.",
        called=("sources", "weights", "source_weight", "mixture", "mixture_weights",
                "train_weights", "sampling_weights", "interleave_probs"),
    )
    source_temperature: float = setting(
        1.0, DATA,
        "Without weights a source has rows in proportion to its tokens to the power of 1 / "
        "temperature: 1 sees all text equally often, more than 1 sees small sources more often.",
        above=0, called=("temperature", "sampling_temperature"),
    )
