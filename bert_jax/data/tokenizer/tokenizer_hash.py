"""Hashes everything that decides the ids of a tokenizer."""

import hashlib
import json
from typing import Any

import numpy as np

_FLAGS = ("id", "content", "single_word", "lstrip", "rstrip", "normalized")


def sha256(backend: Any, *, kind: str, special: dict[str, int], pair_separators: int) -> str:
    """Returns the SHA-256 of everything that decides ids in a `tokenizers.Tokenizer`; the layout of
    files is excluded.
    """
    state = json.loads(backend.to_str())
    model = state["model"]
    vocab = backend.get_vocab(with_added_tokens=True)
    tokens = sorted((id_, token) for token, id_ in vocab.items())
    if kind == "wordpiece":
        fields = ("unk_token", "continuing_subword_prefix", "max_input_chars_per_word")
        settings = {field: model[field] for field in fields}
    elif kind in ("bpe", "characters"):
        fields = ("merges", "byte_fallback", "ignore_merges", "unk_token", "fuse_unk")
        settings = {field: model.get(field) for field in fields}
        # Only hashed if present, so that other tokenizers keep their hash.
        affixes = ("continuing_subword_prefix", "end_of_word_suffix")
        settings |= {field: model[field] for field in affixes if model.get(field)}
    else:
        # Scores are 32-bit by origin; the text form in a file may differ beyond that.
        scores = np.array([score for _, score in model["vocab"]], dtype=np.float32).tolist()
        fallback = model.get("byte_fallback", False)
        settings = {"unk_id": model["unk_id"], "byte_fallback": fallback, "scores": scores}
    content = {
        "kind": kind,
        "tokens": tokens,
        "model": settings,
        "normalizer": _canonical_normalizer(state["normalizer"]),
        "pre_tokenizer": state["pre_tokenizer"],
        "added": sorted([token[flag] for flag in _FLAGS] for token in state["added_tokens"]),
        "special": special,
    }
    if pair_separators > 1:
        content["pair_separators"] = pair_separators
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical_normalizer(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    if (
        normalizer
        and normalizer["type"] == "BertNormalizer"
        and normalizer["strip_accents"] is None
    ):
        return {**normalizer, "strip_accents": normalizer["lowercase"]}  # the meaning of null
    return normalizer
