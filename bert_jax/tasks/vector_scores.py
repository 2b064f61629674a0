"""How well the vectors of a model find documents, and agree with people about similar texts: of a
checkpoint, and at the evaluations of a run (the hooks `retrieval` and `similarity`).
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jax.sharding import Mesh

from bert_jax.config import HookConfig, ModelConfig, TrainConfig
from bert_jax.config.fields import Share, section, setting
from bert_jax.data.sources.stream import HELD_OUT, SourceOptions
from bert_jax.data.tasks.retrieval_sets import RetrievalSet, read_retrieval_set
from bert_jax.data.tasks.tables import TextRow, read_rows
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.inference.retrieval_scores import DEEPEST, FIGURES, retrieval_scores
from bert_jax.inference.retrieve import (
    DOCUMENT_PROMPTS,
    QUERY_PROMPTS,
    Embedder,
    TextsAndPrompts,
    bm25_search,
    search,
    text_vectors,
)
from bert_jax.interchange.sentence_transformers import EmbeddingRecipe, recipe_of_run
from bert_jax.model.flops import encoder_flops
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax.progress import note
from bert_jax.tasks.scores import spearman
from bert_jax.tasks.sequence_classification import number_of
from bert_jax.training.hooks import Hook, Stop
from bert_jax.training.job import Row, Run, Scores, TrainingJob


class VectorSet(Protocol):
    """Texts, and what their vectors should show."""

    texts: Sequence[TextsAndPrompts]

    def score(self, *vectors: np.ndarray, mesh: Mesh, hidden: bool = False) -> dict[str, float]:
        """Returns scores of the vectors of each list of `texts`, float32 `[N, W]`. `hidden` hides
        the progress bar.
        """
        ...


class Retrieval:
    """A retrieval set, scored by `retrieval_scores`.

    A document that is the query itself (the same id, and the query's text at its end) is left out
    of the ranking, as beir does for ArguAna and Quora.
    """

    def __init__(self, given: RetrievalSet):
        self._given = given
        self._ids = sorted(given.documents, reverse=True)  # the order of equal scores
        self.documents = [given.documents[id_] for id_ in self._ids]
        self.queries = [*given.queries.values()]
        self.texts = ((self.documents, DOCUMENT_PROMPTS), (self.queries, QUERY_PROMPTS))
        self._k = DEEPEST + 1  # the query itself may be one

    def score(self, *vectors: np.ndarray, mesh: Mesh, hidden: bool = False) -> dict[str, float]:
        vectors_NW, vectors_QW = vectors
        return self._scores(search(vectors_QW, vectors_NW, self._k, mesh=mesh, hidden=hidden)[0])

    def bm25(self) -> dict[str, float]:
        """Returns the scores of BM25."""
        return self._scores(bm25_search(self.queries, self.documents, self._k))

    def _scores(self, rows_QK: np.ndarray) -> dict[str, float]:
        rankings, documents = {}, self._given.documents
        for (query, text), rows in zip(self._given.queries.items(), rows_QK, strict=True):
            itself = query if documents.get(query, "").endswith(text) else None
            ranked = (self._ids[row] for row in rows)
            rankings[query] = [id_ for id_ in ranked if id_ != itself][:DEEPEST]
        return retrieval_scores(rankings, self._given.grades)


class Similarity:
    """Pairs of texts, scored by Spearman's correlation of their similarity and their score.

    Raises UsageError that names the row for a score that is not a finite number.
    """

    def __init__(self, rows: Sequence[TextRow]):
        self._gold = np.array([number_of(row) for row in rows])
        self.texts = (([text for row in rows for text in row.texts], ()),)

    def score(self, *vectors: np.ndarray, mesh: Mesh, hidden: bool = False) -> dict[str, float]:
        (vectors_NW,) = vectors
        found = np.sum(vectors_NW[0::2] * vectors_NW[1::2], axis=1)
        return {"Spearman": spearman(self._gold, found)}


def score_vectors(
    checkpoint: LoadedCheckpoint, given: VectorSet, *, length: int | None = None
) -> dict[str, float]:
    """Returns the scores of the vectors of a checkpoint."""
    vectors = text_vectors(checkpoint, *given.texts, length=length)
    return given.score(*vectors, mesh=checkpoint.mesh)


# --- during a run ---------------------------------------------------------------------------------


@section
class VectorSetOptions(HookConfig):
    """The options of hooks that score vectors."""

    source: str = setting("", "The set: a path, or an address for `similarity`.")
    share: Share = setting(
        0.1,
        "Largest share of the FLOPs of the run that the evaluations of the set take: some are left "
        "out, but not the last one.",
    )


@section
class RetrievalOptions(VectorSetOptions, kind="retrieval"):
    """The options of `RetrievalHook`."""


@section
class SimilarityOptions(VectorSetOptions, kind="similarity"):
    """The options of `SimilarityHook`."""

    text_columns: tuple[str, ...] = setting(("sentence1", "sentence2"), "Columns of both texts.")
    label_column: str = setting("score", "Column of the score.")


class VectorHook(Hook):
    """Scores the vectors of the run at its evaluations, in its compute type, on all devices.

    Evaluations are chosen by FLOPs, not by the clock, so that a resumed run has the same rows.
    """

    # The beginning of the name of the split in the log.
    what: str

    def __init__(self, *, source: str, share: float):
        self._source, self._share = source, share
        self._model: ModelConfig | None = None

    def read(self) -> VectorSet:
        """Returns the set. Raises UsageError."""
        raise NotImplementedError

    def prepare(self, job: TrainingJob, directory: Path) -> None:
        if not self._source:
            raise UsageError("hooks: `source` is missing; name the set to evaluate")
        self._set = self.read()

    def begin(self, run: Run, step: int, rows: Sequence[Row]) -> Stop | None:
        super().begin(run, step, rows)
        config, tokenizer = run.job.config, load_tokenizer(run.job.tokenizer)
        recipe = recipe_of_run(config) or EmbeddingRecipe()

        def embedder(model: TrainConfig) -> Embedder:
            size = config.evaluation.batch_size
            return Embedder(model, recipe, tokenizer, mesh=run.job.mesh, batch_size=size)

        self._embedder_of = embedder
        self._embedder = embedder(config)
        self._encoded = [[*self._embedder.encode(*texts)] for texts in self._set.texts]
        self._steps = self._chosen(run.job)
        return None

    def _chosen(self, job: TrainingJob) -> set[int]:
        """Returns the steps with an evaluation: every one, every second, ... up to the last."""
        config = job.config
        every = config.evaluation.every_steps or config.total_steps
        steps = {*range(every, config.total_steps, every), *config.phase_ends}
        steps |= {0} if job.begins_trained else set()
        training = sum(
            3 * phase.steps * phase.global_batch_size
            * encoder_flops(config.model, length=phase.sequence_length)
            for phase in config.phases
        )  # fmt: skip
        lengths = [
            self._embedder.forward.padded_lengths(part.rows)
            for parts in self._encoded
            for part in parts
        ]
        each, counts = np.unique(np.concatenate(lengths), return_counts=True)
        cost = sum(
            count * encoder_flops(config.model, length=length)
            for length, count in zip(each.tolist(), counts.tolist(), strict=True)
        )
        times = max(1, int(self._share * training / cost))
        if cost > self._share * training:
            note(
                f"warning: hooks: one evaluation of {self._source} takes {cost / training:.0%} of "
                "the FLOPs of the run; it is evaluated at the end only"
            )
        return {*sorted(steps)[:: -math.ceil(len(steps) / times)]}

    def evaluate(self, step: int, params: Any, *, cut_short: Callable[[], bool]) -> Scores | None:
        if step not in self._steps:
            return {}
        config = self.run.job.config.at_step(step)
        if config.model != self._model:  # a phase may override the model
            self._model, self._embedder = config.model, self._embedder_of(config)
        vectors: list[np.ndarray] = []
        for parts in self._encoded:
            found = self._embedder.vectors(params, parts, cut_short=cut_short)
            if found is None:
                return None
            vectors.append(found)
        scores = self._set.score(*vectors, mesh=self.run.job.mesh, hidden=True)
        return {f"{self.what}/{Path(self._source).name}": scores}


class RetrievalHook(VectorHook):
    """Scores the run on a retrieval set."""

    what, figures = "retrieval", FIGURES

    def read(self) -> VectorSet:
        return Retrieval(read_retrieval_set(Path(self._source)))


class SimilarityHook(VectorHook):
    """Scores the run on pairs of texts with a similarity score."""

    what, figures = "similarity", ("Spearman",)

    def __init__(self, *, text_columns: Sequence[str], label_column: str, **options: Any):
        super().__init__(**options)
        self._columns, self._label = text_columns, label_column

    def read(self) -> VectorSet:
        reading = SourceOptions(splits=HELD_OUT)
        return Similarity(
            read_rows(
                self._source,
                text_columns=self._columns,
                label_column=self._label,
                reading=reading,
            )
        )
