"""Reads and writes the directories of other systems, whatever their format."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface, sentence_transformers, tf1
from bert_jax.interchange.name_map import Foreign


def read(
    path: Path, *, allow_missing_heads: bool = False, ignore_unexpected: Sequence[str] = ()
) -> Foreign | None:
    """Returns the model at `path`, with the directory of its tokenizer; None for other paths.

    `path` is a Hugging Face directory, one of sentence-transformers, a TF1 directory or a TF1
    prefix. In a directory with both formats, Hugging Face's is read; a TF1 prefix names the other.
    Raises UsageError as the readers of the formats do.
    """
    directory, reader = sentence_transformers.encoder_directory(path), huggingface.read
    if not huggingface.is_directory(directory):
        if not tf1.is_checkpoint(path):
            return None
        directory, reader = tf1.directory_of(path), tf1.read
    found = reader(
        path if reader is tf1.read else directory,
        allow_missing_heads=allow_missing_heads,
        ignore_unexpected=ignore_unexpected,
    )
    return dataclasses.replace(found, tokenizer=directory)


def write(
    directory: Path,
    foreign: Foreign,
    *,
    format: Literal["hf", "tf1"] = "hf",
    **options: Any,
) -> str:
    """Writes a model and its tokenizer as a new directory; returns its `model_type`.

    `options` are those of `huggingface.write`: `dtype`, `max_file_bytes` and `model_type`. Raises
    UsageError if the directory exists and is not empty, or the format cannot express the model.
    """
    if foreign.tokenizer is None:
        raise UsageError(f"{directory}: a model without a tokenizer cannot be written")
    if format == "tf1":
        tf1.write(directory, foreign, tokenizer=foreign.tokenizer)
        return "bert"
    return huggingface.write(
        directory,
        foreign.params,
        foreign.model,
        head=foreign.head,
        tokenizer=foreign.tokenizer,
        **options,
    )
