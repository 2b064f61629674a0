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
        0.05, "Similarities are divided by it: 0.05 for labeled pairs, 0.01 to 0.02 for many."
    )
    symmetric: bool = setting(
        False, "Whether the loss is the mean of both directions, also query among queries."
    )
    mask_duplicates: bool = setting(
        True,
        "Whether copies of a text in the batch count once, and a copy of the query's document is "
        "not used as a negative.",
    )
    false_negative_margin: NonNegative | None = setting(
        None,
        "Leaves out a document with a similarity above that of the query's own document plus this "
        "margin; unset: none.",
    )


@section
class EmbeddingConfig:
    """Vectors of texts: objective `contrastive`, and the tasks `pairs` and `similarity`."""

    loss: PairLoss = setting(InfoNCE(), "The loss of the vectors, see [below](#losses-of-pairs).")
    similarity: Literal["cosine", "dot"] = setting(
        "cosine", "The similarity of two vectors. With `cosine` an export normalizes them."
    )
    dims: tuple[Count, ...] = setting(
        (),
        "Widths below the model's at which the loss is added, so that the first columns of a "
        "vector are a vector (Matryoshka, Kusupati et al. 2022); descending.",
    )
    query_prompt: str = setting("", "Text before each query; kept with the run and in an export.")
    document_prompt: str = setting("", "Text before each document.")
