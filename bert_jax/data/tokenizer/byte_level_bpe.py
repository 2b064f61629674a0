"""Byte-level BPE in the format of GPT-2 and RoBERTa: builds the backend from `vocab.json` and
`merges.txt`, and trains vocabularies.

Text is split by GPT-2's rule, each byte maps to a printable character ("Ġ" is a space, which
belongs to the word after it), and pairs are merged. No text is unknown (Radford et al. 2019, 2.2).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.tokenizer import special_tokens, tokenizer_files
from bert_jax.errors import UsageError, brief
from bert_jax.progress import note_once

# RoBERTa's special tokens: the first four have the ids 0 to 3, and the mask has the last id
# (fairseq's Dictionary; tasks/masked_lm.py adds the mask).
_FIRST = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>"}
_SPECIALS = _FIRST | {"mask": "<mask>"}
_MIN_FREQUENCY = 2
VOCABULARY, MERGES = "vocab.json", "merges.txt"
# White space in the byte alphabet: the bytes that are not printable map to code points from 256 on.
WHITE_SPACE = tuple(chr(256 + ord(character)) for character in "\t\n\v\f\r ")


def build(
    vocab: dict[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    source: str,
    add_prefix_space: bool = False,
    mask: str = _SPECIALS["mask"],
    is_mask_lstrip: bool = True,
) -> Any:
    """Returns the `tokenizers.Tokenizer` that encodes as `RobertaTokenizerFast` does.

    The mask token absorbs the space before it, as in RoBERTa, unless `is_mask_lstrip` is false.
    """
    from tokenizers import AddedToken, models

    with tokenizer_files.refused_by_library(f"{source}: vocabulary and merges do not fit"):
        backend = _backend(models.BPE(vocab, list(merges)), add_prefix_space=add_prefix_space)
    if mask in vocab:
        backend.add_special_tokens([AddedToken(mask, lstrip=is_mask_lstrip, normalized=False)])
    pair_as_roberta(backend)
    return backend


def train(lines: list[str], *, vocab_size: int) -> Any:
    """Returns the backend of a vocabulary with at most `vocab_size` tokens, fewer if no remaining
    pair occurs twice.

    The result depends only on the content of `lines`: pairs are ranked by count, then by id.
    Raises `UsageError` if `vocab_size` is too small for the bytes and the special tokens.
    """
    from tokenizers import models, pre_tokenizers, trainers

    least = 256 + len(_SPECIALS)
    if vocab_size < least:
        raise UsageError(
            f"vocabulary size {vocab_size} is too small for byte-level BPE: the 256 bytes and the "
            f"special tokens need at least {least}"
        )
    trained = _backend(models.BPE(), add_prefix_space=False)
    trained.train_from_iterator(
        lines,
        trainers.BpeTrainer(
            vocab_size=vocab_size - 1,  # the mask comes last
            min_frequency=_MIN_FREQUENCY,
            special_tokens=list(_FIRST.values()),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    model = json.loads(trained.to_str())["model"]
    vocab = model["vocab"] | {_SPECIALS["mask"]: len(model["vocab"])}
    merges = [(first, second) for first, second in model["merges"]]
    return build(vocab, merges, source="trained vocabulary")


def is_file_of(path: Path) -> bool:
    """Returns whether a file is `vocab.json` or `merges.txt`, the format of GPT-2 and RoBERTa."""
    return path.name in (VOCABULARY, MERGES)


def load(directory: Path, config: dict[str, Any]) -> Any:
    """Returns the backend of `vocab.json` and `merges.txt`. `config` is the content of
    tokenizer_config.json in the same directory.
    """
    path = directory / VOCABULARY
    vocab = tokenizer_files.parse_json(path)
    if not isinstance(vocab, dict) or not vocab:
        raise UsageError(f"{path} must be a JSON object that maps tokens to ids")
    for token, id_ in vocab.items():
        if not isinstance(id_, int) or isinstance(id_, bool) or id_ < 0:
            raise UsageError(f"{path}: {brief(token)} has the id {brief(id_)}; ids count from 0")
    tokenizer_files.require_no_added_tokens(path, vocab, config)
    backend = build(
        vocab,
        _read_merges(directory / MERGES),
        source=str(path),
        add_prefix_space=config.get("add_prefix_space") is True,
        mask=special_tokens.configured(config).get("mask", _SPECIALS["mask"]),
        is_mask_lstrip=_is_lstrip(config.get("mask_token")),
    )
    lacking = 256 - sum(character in vocab for character in _alphabet())
    if lacking:
        note_once(f"{path} has no token for {lacking} of the 256 bytes; encoding drops these bytes")
    return backend


def save(directory: Path, backend: Any) -> None:
    """Writes `vocab.json`, sorted by id, and `merges.txt` to the directory of tokenizer.json."""
    vocab = backend.get_vocab(with_added_tokens=True)
    in_order = dict(sorted(vocab.items(), key=lambda item: item[1]))
    text = json.dumps(in_order, ensure_ascii=False, separators=(",", ":"))
    tokenizer_files.write_text(directory / VOCABULARY, text)
    merges = json.loads(backend.to_str())["model"]["merges"]
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    tokenizer_files.write_text(directory / MERGES, "\n".join(lines))


def is_byte_level(backend: Any) -> bool:
    """Returns whether a backend splits text into bytes: a space then belongs to the next word."""
    return '"ByteLevel"' in json.dumps(json.loads(backend.to_str())["pre_tokenizer"])


def with_unknown_token(backend: Any, names: dict[str, str]) -> dict[str, str]:
    """Returns the special tokens by role, with the padding token in the role of the unknown token
    if only this role is missing, as in the vocabularies of Llama and EuroBERT: every byte has a
    token, and the model has no embedding for another id.
    """
    vocab = backend.get_vocab(with_added_tokens=True)
    is_missing = not any(name in vocab for name in special_tokens.USUAL["unk"])
    if is_missing and special_tokens.USUAL.keys() - names == {"unk"}:
        return names | {"unk": names["pad"]}
    return names


def pair_as_roberta(backend: Any) -> None:
    """Puts two separators between the texts of a pair if the vocabulary has RoBERTa's tokens."""
    from tokenizers import processors

    cls, sep = ((_FIRST[role], backend.token_to_id(_FIRST[role])) for role in ("cls", "sep"))
    if None not in (cls[1], sep[1]):
        backend.post_processor = processors.RobertaProcessing(sep, cls)


def _backend(model: Any, *, add_prefix_space: bool) -> Any:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, pre_tokenizers

    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


def _alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel.alphabet()


def _is_lstrip(mask: Any) -> bool:
    """Returns whether the mask absorbs the space before it: true unless the file denies it."""
    return mask.get("lstrip") is not False if isinstance(mask, dict) else True


def _read_merges(path: Path) -> list[tuple[str, str]]:
    lines = tokenizer_files.read_text(path).removesuffix("\n").split("\n")
    merges = []
    for number, line in enumerate(lines, start=1):
        if number == 1 and line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(pair):
            raise UsageError(f"{path}: line {number} is {brief(line)}; write a pair of two tokens")
        merges.append((pair[0], pair[1]))
    return merges
