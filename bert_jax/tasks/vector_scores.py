"""How well the vectors of a model find documents, and agree with people about similar texts: of a
checkpoint, and at the evaluations of a run (the hook `vector_scores`).
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from bert_jax.config import HookConfig, ModelConfig
from bert_jax.config.fields import Share, section, setting
from bert_jax.data.tasks.retrieval_sets import RetrievalSet, read_retrieval_set
from bert_jax.data.tasks.tables import TextRow, read_rows
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.inference.retrieval_scores import DEEPEST, FIGURES, retrieval_scores
from bert_jax.inference.retrieve import Embedder, bm25_search, search
from bert_jax.interchange.sentence_transformers import (
    DOCUMENT_PROMPTS,
    QUERY_PROMPTS,
    EmbeddingRecipe,
    recipe_of_run,
)
from bert_jax.model.flops import encoder_flops
from bert_jax.progress import note
from bert_jax.tasks.scores import spearman
from bert_jax.tasks.sequence_classification import number_of
from bert_jax.training.hooks import Hook, Stop
from bert_jax.training.job import Row, Run, Scores, TrainingJob


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
        self.texts = (self.documents, DOCUMENT_PROMPTS), (self.queries, QUERY_PROMPTS)
        self._k = DEEPEST + 1  # the query itself may be one

    def score(self, *vectors: np.ndarray, mesh: Mesh, hidden: bool = False) -> dict[str, float]:
        """Returns scores of the vectors of each list of `texts`, float32 `[N, W]`. `hidden` hides
        the progress bar.
        """
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

    def score(self, *vectors: np.ndarray, **_: Any) -> dict[str, float]:
        """As `Retrieval.score`."""
        (vectors_NW,) = vectors
        found = np.sum(vectors_NW[0::2] * vectors_NW[1::2], axis=1)
        return {"Spearman": spearman(self._gold, found)}


# Texts, and what their vectors should show.
VectorSet = Retrieval | Similarity


def read_sets(
    retrieval: str, similarity: str, *, text: Sequence[str] = (), label: str = "score"
) -> dict[str, VectorSet]:
    """Returns the named sets: a folder, and a table with the columns `text` of both texts
    (sentence1 and sentence2) and the column `label` of the score. Raises UsageError.
    """
    found: dict[str, VectorSet] = {}
    if retrieval:
        found[f"retrieval/{Path(retrieval).name}"] = Retrieval(read_retrieval_set(Path(retrieval)))
    if similarity:
        columns = text or ("sentence1", "sentence2")
        if len(columns) != 2:
            raise UsageError(
                f"similarity {similarity}: `text` names {len(columns)} columns, not two"
            )
        rows = read_rows(similarity, text_columns=columns, label_column=label)
        found[f"similarity/{Path(similarity).name}"] = Similarity(rows)
    return found


# --- during a run ---------------------------------------------------------------------------------


@section
class VectorScoresConfig(HookConfig, kind="vector_scores"):
    """The options of `VectorScores`."""

    retrieval: str = setting("", "A retrieval set in the format of BEIR.")
    similarity: str = setting("", "Pairs of texts with a score: a table or an address.")
    text: tuple[str, ...] = setting((), "Columns of the two texts of `similarity`.")
    label: str = setting("score", "Column of the score of `similarity`.")
    share: Share = setting(
        0.05,
        "Largest share of the FLOPs of the run: some evaluations are left out, but not the last.",
    )

    @property
    def figures(self) -> tuple[str, ...]:
        return (*(FIGURES if self.retrieval else ()), *(("Spearman",) if self.similarity else ()))


class VectorScores(Hook):
    """Scores the vectors of the run on a retrieval set, on similarity, or on both.

    Uses the compute type and the devices of the run. Evaluations are chosen by FLOPs, not by the
    clock, so that a resumed run has the same rows.
    """

    def __init__(self, *, retrieval: str, similarity: str, share: float, **columns: Any):
        self._named, self._columns, self._share = (retrieval, similarity), columns, share
        self._model: ModelConfig | None = None

    def prepare(self, job: TrainingJob, directory: Path) -> None:
        self._sets = read_sets(*self._named, **self._columns)
        if not self._sets:
            raise UsageError("hooks: vector_scores has neither `retrieval` nor `similarity`")

    def begin(self, run: Run, step: int, rows: Sequence[Row]) -> Stop | None:
        super().begin(run, step, rows)
        config = run.job.config
        self._embedder_of = functools.partial(
            Embedder,
            recipe=recipe_of_run(config) or EmbeddingRecipe(),
            tokenizer=load_tokenizer(run.job.tokenizer),
            mesh=run.job.mesh,
            batch_size=config.evaluation.batch_size,
        )
        self._embedder = self._embedder_of(config)
        self._encoded = {
            name: [[*self._embedder.encode(*texts)] for texts in each.texts]
            for name, each in self._sets.items()
        }
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
        parts = (rows for lists in self._encoded.values() for each in lists for _, rows in each)
        lengths = [self._embedder.forward.padded_lengths(rows) for rows in parts]
        counts = Counter(np.concatenate(lengths).tolist())
        cost = sum(n * encoder_flops(config.model, length=each) for each, n in counts.items())
        if cost > self._share * training:
            note(
                f"warning: hooks: one evaluation of {', '.join(self._sets)} takes "
                f"{cost / training:.0%} of the FLOPs of the run; only the last step has one"
            )
        times = max(1, int(self._share * training / cost))
        return {*sorted(steps)[:: -math.ceil(len(steps) / times)]}

    def evaluate(self, step: int, params: Any, *, cut_short: Callable[[], bool]) -> Scores | None:
        if step not in self._steps:
            return {}
        config, scores = self.run.job.config.at_step(step), {}
        if config.model != self._model:  # a phase may override the model
            self._model, self._embedder = config.model, self._embedder_of(config)
        for name, lists in self._encoded.items():
            vectors = [self._embedder.vectors(params, x, cut_short=cut_short) for x in lists]
            if any(each is None for each in vectors):
                return None
            scores[name] = self._sets[name].score(*vectors, mesh=self.run.job.mesh, hidden=True)
        return scores
