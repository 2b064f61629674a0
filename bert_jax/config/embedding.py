"""The section of a config for the vectors of texts: what is learned from pairs, and how."""

from typing import Any, ClassVar, Literal

from bert_jax.config.fields import Count, Kind, NonNegative, Positive, section, setting
from bert_jax.registry import PAIR_LOSSES


@section
class PairLoss(Kind, table=PAIR_LOSSES):
    """The base of the losses of the vectors of texts (objectives/pair_losses.py)."""

    default_kind = "info_nce"

    # Whether the loss reads scores: one for each document, or one for the pair.
    needs_scores: ClassVar[bool] = False
    # Whether the loss compares the documents of one query only.
    needs_negatives: ClassVar[bool] = False

    def mean(self, texts: Any) -> tuple[Any, Any]:
        """Returns the loss of a batch, and the share of its examples that are right: two float32
        scalars.

        `texts` are `Texts` (objectives/pair_losses.py). A kind that is a class overrides it.
        """
        return self.entry()(self, texts)


@section
class InfoNCE(PairLoss, kind="info_nce"):
    """Softmax cross-entropy of a query's own document among all documents of the batch."""

    temperature: Positive = setting(
        0.05,
        "Divisor of similarities: usually 0.05 for labeled pairs, 0.01 to 0.02 for large sets.",
    )
    symmetric: bool = setting(False, "Whether to average query to document and the reverse.")
    mask_duplicates: bool = setting(
        True, "Whether duplicates in a batch count once, and never as negatives of themselves."
    )
    false_negative_margin: NonNegative | None = setting(
        None,
        "Excludes a negative if its similarity exceeds the similarity of the positive document by "
        "more than this margin; `null` excludes none.",
    )


@section
class EmbeddingConfig:
    """Text embeddings, for the objective `contrastive` and the tasks `pairs` and `similarity`."""

    loss: PairLoss = setting(InfoNCE(), "Loss of the text embeddings.")
    similarity: Literal["cosine", "dot"] = setting(
        "cosine", "Similarity of two embeddings. With `cosine`, an export normalizes them."
    )
    dims: tuple[Count, ...] = setting(
        (),
        "Matryoshka dimensions in descending order, below the width of the model: the loss is the "
        "sum over the whole embedding and its first columns (Kusupati et al. 2022).",
    )
    query_prompt: str = setting("", "Prompt before each query, stored in the run and its exports.")
    document_prompt: str = setting("", "Prompt before each document.")
