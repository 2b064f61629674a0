"""Byte-level BPE as GPT-2 and RoBERTa have it: the backend around `vocab.json` and `merges.txt`,
and a vocabulary from text.

Text is cut by GPT-2's rule, each byte becomes a printable character ("Ġ" is a space, which belongs
to the word after it), and pairs are merged. No text is unknown (Radford et al. 2019, section 2.2).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.tokenizer import special_tokens, tokenizer_files
from bert_jax.errors import UsageError, brief
from bert_jax.progress import note_once

# RoBERTa's special tokens: the first four are ids 0 to 3, and the mask is the last id (fairseq's
# Dictionary, and `mask` added to it by tasks/masked_lm.py).
_FIRST = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>"}
_SPECIALS = _FIRST | {"mask": "<mask>"}
_MIN_FREQUENCY = 2
VOCABULARY, MERGES = "vocab.json", "merges.txt"
# White space, as the alphabet writes it: bytes that are not printable follow code point 255.
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

    The mask takes the space before it, as RoBERTa's does, unless `is_mask_lstrip` is false.
    """
    from tokenizers import AddedToken, models

    with tokenizer_files.refused_by_library(f"{source}: vocabulary and merges do not fit"):
        backend = _backend(models.BPE(vocab, list(merges)), add_prefix_space=add_prefix_space)
    if mask in vocab:
        backend.add_special_tokens([AddedToken(mask, lstrip=is_mask_lstrip, normalized=False)])
    pair_as_roberta(backend)
    return backend


def train(lines: list[str], *, vocab_size: int) -> Any:
    """Returns the backend of a vocabulary with at most `vocab_size` tokens, fewer if no pair is
    left that occurs twice.

    It is a function of the lines' contents alone: counts decide, and of equal counts the ids.
    Raises `UsageError` if the bytes and the special tokens alone need more.
    """
    from tokenizers import models, pre_tokenizers, trainers

    least = 256 + len(_SPECIALS)
    if vocab_size < least:
        raise UsageError(
            f"vocabulary size {vocab_size} is too small for byte-level BPE: the 256 bytes and the "
            f"special tokens alone need {least}"
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
    """Returns whether a file is one of the two that GPT-2 and RoBERTa were published as."""
    return path.name in (VOCABULARY, MERGES)


def load(directory: Path, config: dict[str, Any]) -> Any:
    """Returns the backend of `vocab.json` and `merges.txt`; `config` is the tokenizer_config.json
    beside them.
    """
    path = directory / VOCABULARY
    vocab = tokenizer_files.parse_json(path)
    if not isinstance(vocab, dict) or not vocab:
        raise UsageError(f"{path} is no table of tokens and ids")
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
        note_once(f"{path} has no token for {lacking} of the 256 bytes, which text then loses")
    return backend


def save(directory: Path, backend: Any) -> None:
    """Writes `vocab.json`, in the order of the ids, and `merges.txt`, beside tokenizer.json."""
    vocab = backend.get_vocab(with_added_tokens=True)
    in_order = dict(sorted(vocab.items(), key=lambda item: item[1]))
    text = json.dumps(in_order, ensure_ascii=False, separators=(",", ":"))
    tokenizer_files.write_text(directory / VOCABULARY, text)
    merges = json.loads(backend.to_str())["model"]["merges"]
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    tokenizer_files.write_text(directory / MERGES, "\n".join(lines))


def is_byte_level(backend: Any) -> bool:
    """Returns whether a backend cuts text by bytes, and so a space belongs to the word after it."""
    return '"ByteLevel"' in json.dumps(json.loads(backend.to_str())["pre_tokenizer"])


def with_special_tokens(backend: Any, names: dict[str, str], *, source: str) -> dict[str, str]:
    """Gives a backend that has no special tokens, as GPT-2's, those of RoBERTa. They become its
    last ids, with a note. `names` has the roles that have a token; returns all that are known.

    Where the unknown token alone lacks, as in Llama's vocabulary and so in EuroBERT's, padding is
    it: no byte is unknown, and a model of such a vocabulary has no row for one more.
    """
    from tokenizers import AddedToken

    vocab = backend.get_vocab(with_added_tokens=True)
    if any(name in vocab for usual in special_tokens.USUAL.values() for name in usual):
        return names
    added = [token for role, token in _SPECIALS.items() if role not in names]
    if added == [_SPECIALS["unk"]]:
        return names | {"unk": names["pad"]}
    if not added:
        return names
    backend.add_special_tokens(
        [AddedToken(token, lstrip=token == _SPECIALS["mask"], normalized=False) for token in added]
    )
    first, last = (backend.token_to_id(token) for token in (added[0], added[-1]))
    note_once(
        f"{source} has no special tokens: {' '.join(added)} are added as ids {first} to {last}"
    )
    pair_as_roberta(backend)
    return names


def pair_as_roberta(backend: Any) -> None:
    """Puts two separators between the texts of a pair, if the vocabulary has RoBERTa's."""
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
    """Returns whether the mask takes the space before it: RoBERTa's does unless its file denies."""
    return mask.get("lstrip") is not False if isinstance(mask, dict) else True


def _read_merges(path: Path) -> list[tuple[str, str]]:
    lines = tokenizer_files.read_text(path).removesuffix("\n").split("\n")
    merges = []
    for number, line in enumerate(lines, start=1):
        if number == 1 and line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(pair):
            raise UsageError(f"{path}: line {number} is {brief(line)}; write two tokens, a pair")
        merges.append((pair[0], pair[1]))
    return merges
