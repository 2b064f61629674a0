"""A model from any checkpoint: tokens, embeddings, logits, predictions.

Dims: N texts, L tokens of the longest one (padded to a multiple of 8), D width, W width x number of
layers, V rows of the word embedding.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.data.tasks.encode_rows import Batches, Features
from bert_jax.data.tasks.tables import text_row
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UsageError, brief
from bert_jax.inference import embed, fill_mask
from bert_jax.inference.fill_mask import Prediction
from bert_jax.inference.forward import OF_TOKENS, Forward, in_float32
from bert_jax.model import bert
from bert_jax.pretrained.load import LoadedCheckpoint, load_checkpoint
from bert_jax.progress import note
from bert_jax.tasks.predict import Predictor

# A text, texts, or pairs of texts.
Texts = str | Sequence[str] | Sequence[tuple[str, str]]
Pooled = Literal["mean", "cls", "max", "lasttoken"]
# Texts per batch if every token has an output as wide as the vocabulary.
_BATCH = 8
# Up to this number of texts, a progress bar is not worthwhile.
_WORTH_NO_BAR = 64


def load(
    path: str | Path, *, allow_missing_heads: bool = True, ignore_unexpected: Sequence[str] = ()
) -> "Model":
    """Reads a workdir (its newest good step), a step of one, a Hugging Face or a TF1 directory.

    A workdir or one of its steps may be in a bucket (`gs://BUCKET/PATH`). Incomplete heads of a
    third-party model are omitted with a note; with `allow_missing_heads=False` they are an error.
    Extra tensors are an error unless a pattern in `ignore_unexpected` matches their name. Raises
    UsageError if `path` is not a checkpoint or its tensors do not fit its config, and
    NoUsableCheckpoint if a workdir has no checkpoint.
    """
    source = load_checkpoint(
        path, allow_missing_heads=allow_missing_heads, ignore_unexpected=ignore_unexpected
    )
    if source.missing:
        note(f"{path}: loaded without {', '.join(source.missing)}, which it lacks")
    return Model(source)


class Model:
    """A loaded checkpoint, which `load` returns.

    Its parameters are on all devices. Its methods take texts and return float32 NumPy arrays; they
    set their own mesh while they compute. Compiled programs are cached.
    """

    def __init__(self, source: LoadedCheckpoint):
        self._source = source
        self._tokenizer = load_tokenizer(source.tokenizer)
        self._forwards: dict[Any, Forward] = {}

    @property
    def config(self) -> TrainConfig:
        """The run's config; for a third-party model, only `model` and `head` are meaningful."""
        return self._source.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self._tokenizer

    @property
    def step(self) -> int:
        """Updates that the parameters have seen; 0 if unknown."""
        return self._source.step

    @property
    def params(self) -> bert.Params:
        """The float32 parameters: a nested dict with a subtree for the encoder and for each part.

        They are placed on `mesh`; `jax.device_get(model.params)` returns NumPy arrays.
        """
        return self._source.params

    @property
    def mesh(self) -> Mesh:
        """The devices that hold the parameters."""
        return self._source.mesh

    @property
    def source(self) -> LoadedCheckpoint:
        """The checkpoint, for use with the library's functions."""
        return self._source

    def __repr__(self) -> str:
        model, parts = self.config.model, ("encoder", *self.config.head.parts)
        return (
            f"<Model of {self._source.directory}, step {self.step}: {', '.join(parts)}; "
            f"{model.num_hidden_layers} layers of {model.hidden_size}, "
            f"{self.tokenizer.vocab_size:,} tokens>"
        )

    def encode(self, texts: Texts, *, length: int | None = None) -> dict[str, np.ndarray]:
        """Returns the model inputs for texts: four int32 arrays `[N, L]`.

        `texts` is a text, a list of texts, or a list of pairs. `input_ids` start with [CLS] and
        have a [SEP] after each text; `token_type_ids` are 1 for the second text of a pair;
        `position_ids` count from 0; `sequence_ids` are 1, and 0 for padding. Sequences of more than
        `length` tokens are truncated (default: the number of positions). Raises UsageError if
        `texts` is empty.
        """
        return _batch(self._features(texts, length))

    @overload
    def fill_mask(self, text: str, *, top: int = ...) -> list[list[Prediction]]: ...
    @overload
    def fill_mask(self, text: Sequence[str], *, top: int = ...) -> list[list[list[Prediction]]]: ...
    def fill_mask(
        self, text: str | Sequence[str], *, top: int = 5
    ) -> list[list[Prediction]] | list[list[list[Prediction]]]:
        """Returns for each [MASK] in `text`, in order, its `top` most probable tokens, best first;
        for a list of texts, a list of these.

        A `Prediction` has a `probability`, a `token`, and the `text` with the token inserted; other
        masks remain. Raises UsageError if the text has no mask or more tokens than the model has
        positions, or if the model has no masked-LM head.
        """
        if top < 1:
            raise UsageError(f"`top` {top}: must be at least 1")
        forward = self._kept("mask", lambda: fill_mask.forward_of(self._source))
        found = [
            fill_mask.fill_mask(self._source, self._tokenizer, each, top=top, forward=forward)
            for each in _texts(text)
        ]
        return found[0] if isinstance(text, str) else found

    @overload
    def embed(
        self,
        texts: str | Sequence[str],
        *,
        layers: int | Sequence[int] = ...,
        pooling: Pooled | None = ...,
        length: int | None = ...,
        normalize: bool | None = ...,
    ) -> np.ndarray: ...
    @overload
    def embed(
        self,
        texts: str | Sequence[str],
        *,
        layers: int | Sequence[int] = ...,
        pooling: Literal["none"],
        length: int | None = ...,
        normalize: bool | None = ...,
    ) -> list[np.ndarray]: ...
    def embed(
        self,
        texts: str | Sequence[str],
        *,
        layers: int | Sequence[int] = (-1,),
        pooling: Pooled | Literal["none"] | None = None,
        length: int | None = None,
        normalize: bool | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Returns an embedding for each text, `[N, W]`; several `layers` are concatenated.

        Layers count from 1 to the last layer; 0 is the embedding layer, and negative numbers count
        from the end. `pooling` is "mean" over the tokens of a text, including [CLS] and [SEP],
        "cls", "max", "lasttoken", or "none", which returns a list with `[tokens, W]` for each text.
        `normalize` scales embeddings to length 1. Texts of more than `length` tokens are truncated,
        with a note (default: the number of positions). A sentence-transformers directory sets these
        defaults. Raises UsageError if `texts` is empty, or for a layer or length that the model
        lacks.
        """
        texts = _texts(texts)
        chosen = tuple(layers) if isinstance(layers, Iterable) else (layers,)
        arrays = embed.vectors_of(
            self._source,
            self._tokenizer,
            texts,
            layers=chosen,
            pooling=pooling,
            length=length,
            normalize=normalize,
            hidden=len(texts) <= _WORTH_NO_BAR,
            forwards=self._forwards,
        )
        if pooling == "none":
            return np.split(arrays["vectors"], arrays["offsets"][1:-1])
        return arrays["vectors"]

    def logits(self, texts: Texts, *, length: int | None = None) -> dict[str, np.ndarray]:
        """Returns the logits of all heads for texts, from one pass.

        `texts` and `length` are as in `encode`, and so are the rows. Depending on the heads:
        `mlm_logits` `[N, L, V]` for *every* position (at a [MASK], `fill_mask` ranks them),
        `nsp_logits` `[N, 2]` (is next, is not next), `sequence_logits` `[N, labels]`,
        `token_logits` `[N, L, labels]`, `span_logits` `[N, L, 2]` (start, end), `replaced_logits`
        `[N, L]`. Padding has 0. Raises UsageError if `texts` is empty or the model has no head.
        """
        features = self._features(texts, length)
        found = self._kept(
            "logits",
            lambda: Forward(in_float32(self.config), _logits, batch_size=_BATCH, mesh=self.mesh),
        )(self.params, features)
        is_token_NL = _batch(features)["sequence_ids"] > 0
        for name in found.keys() & set(OF_TOKENS):
            found[name][~is_token_NL] = 0.0
        if "nsp_logits" in found:
            found["nsp_logits"] = found["nsp_logits"][:, 0]
        return found

    def hidden_states(self, texts: Texts, *, length: int | None = None) -> np.ndarray:
        """Returns the outputs of all layers, `[layers + 1, N, L, D]`, from one pass.

        The first is the embedding layer, the last one the input of the heads. Padding has 0.
        `texts` and `length` are as in `encode`, and so are the rows. Raises UsageError if `texts`
        is empty.
        """
        features = self._features(texts, length)
        layers = tuple(range(self.config.model.num_hidden_layers + 1))
        forward = self._kept(
            (layers, "none"),
            lambda: embed.forward_of(in_float32(self.config), mesh=self.mesh, layers=layers),
        )
        joined = forward({"encoder": self.params["encoder"]}, features)
        joined[_batch(features)["sequence_ids"] == 0] = 0.0
        return np.stack(np.split(joined, len(layers), axis=-1))

    def predict(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """Returns the predictions of a fine-tuned model, in the format of `bert-jax predict`.

        A row is a text, a pair of texts or a dict of the task's columns; for tagging, a text (split
        at white space) or a list of words; for questions, a dict with `question`, `context` and
        optionally `id`. Raises UsageError if the model is not a workdir of `finetune`, or with the
        number of an unusable row.
        """
        listed = [] if isinstance(rows, str | Mapping) else _listed(rows)
        if not listed:
            raise UsageError("`rows`: expected a list with at least one row")
        return self._predictor.given(listed)

    @functools.cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self._source)

    def _features(self, texts: Texts, length: int | None) -> Features:
        given = _listed(texts)
        rows = [text_row(row, number=number) for number, row in enumerate(given)]
        if not rows:
            raise UsageError("`texts` is empty; pass at least one text")
        if len({len(row.texts) for row in rows}) > 1:
            raise UsageError("`texts`: expected only texts or only pairs of texts, not both")
        limit = self.config.model.max_position_embeddings
        return embed.encode_rows(rows, self._tokenizer, length=length, limit=limit)

    def _kept(self, what: Any, make: Any) -> Forward:
        if what not in self._forwards:
            self._forwards[what] = make()
        return self._forwards[what]


def _listed(texts: Any) -> list[Any]:
    """Returns texts as a list. Raises UsageError for any other type."""
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        raise UsageError(f"`texts`: expected a text or a list of texts, got {brief(texts)}")
    return list(texts)


def _texts(texts: Any) -> list[str]:
    """Returns texts. Raises UsageError with the number of an item that is not a text."""
    listed = _listed(texts)
    if not listed:
        raise UsageError("`texts` is empty; pass at least one text")
    for number, text in enumerate(listed):
        if not isinstance(text, str):
            raise UsageError(f"text {number}: expected a text, got {brief(text)}")
    return [text_row(text, number=number).texts[0] for number, text in enumerate(listed)]


def _batch(features: Features) -> dict[str, np.ndarray]:
    """Returns all rows as one batch, without padding to a common length."""
    count = len(features)
    return Batches(features, size=count)(np.arange(count))


def _logits(outputs: dict[str, Any]) -> dict[str, Any]:
    found = {name: array for name, array in outputs.items() if name.endswith("_logits")}
    if not found:
        raise UsageError(
            "the model has no head, so that it has no logits; use hidden_states() or embed() for "
            "the outputs of its layers"
        )
    return found
