"""One token per character: vocabularies of sequences (DNA, proteins, SMILES), and ESM's.

The model is BPE without merges, which `transformers` loads from tokenizer.json unchanged. Its
decoder joins tokens without spaces. A character is a Unicode code point after NFC.
"""

import json
import unicodedata
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.tokenizer import special_tokens, tokenizer_files
from bert_jax.data.tokenizer.wordpiece_model import SPECIALS, count_characters
from bert_jax.errors import UsageError
from bert_jax.progress import note_once


def build(vocab: dict[str, int], *, lowercase: bool = False) -> Any:
    """Returns the `tokenizers.Tokenizer` with one token per character.

    White space is collapsed to one space if `vocab` contains a space, and dropped otherwise.
    """
    from tokenizers import Regex, decoders, models, normalizers
    from tokenizers import Tokenizer as Backend

    backend = Backend(models.BPE(vocab, [], unk_token=SPECIALS[1]))
    fold = [normalizers.Lowercase()] if lowercase else []
    space = normalizers.Replace(Regex(r"\s+"), " " if " " in vocab else "")
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), *fold, space])
    backend.decoder = decoders.Fuse()
    return backend


def train(lines: list[str], *, vocab_size: int, lowercase: bool) -> Any:
    """Returns the backend with the special tokens and the most frequent characters of `lines`, at
    most `vocab_size` tokens in all. Ties are broken by code point, the lower one first.
    """
    normalizer = build({SPECIALS[1]: 0, " ": 1}, lowercase=lowercase).normalizer
    counts = count_characters([unicodedata.normalize("NFC", line) for line in lines], normalizer)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    tokens = [*SPECIALS, *ranked][:vocab_size]
    return build({token: i for i, token in enumerate(tokens)}, lowercase=lowercase)


def is_esm(path: Path, config: dict[str, Any]) -> bool:
    """Returns whether `EsmTokenizer` reads a vocab.txt, according to tokenizer_config.json
    (`config`) or config.json in the same directory.
    """
    is_bare = path.suffix not in (".json", ".model")
    return is_bare and tokenizer_files.class_of(path, config)[0] == "Esm"


def load_esm(path: Path, config: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """Returns the backend of `EsmTokenizer`'s vocab.txt, and the special tokens by role; <eos>
    separates texts. Raises UsageError for a repeated line.
    """
    tokens = tokenizer_files.read_text(path).strip().split("\n")
    ids = {token.strip(): number for number, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        raise UsageError(f"{path}: a token is on two lines; each token has one id")
    tokenizer_files.require_no_added_tokens(path, ids, config)
    if config.get("eos_token", "") is None:  # Nucleotide Transformer
        note_once(f"{path} has no <eos> after a text; bert-jax adds <eos>, as BERT adds [SEP]")
    sep = config.get("sep_token") or config.get("eos_token") or "<eos>"
    names = special_tokens.configured({**config, "sep_token": sep})
    names = special_tokens.find(ids, names, str(path), kind="characters")
    return build_esm(ids, names), names


def build_esm(ids: dict[str, int], names: dict[str, str]) -> Any:
    """Returns the backend that encodes as `transformers.EsmTokenizer` does.

    `ids` are the entries of its vocab.txt, and `names` the special tokens by role. Each entry is
    one token wherever it occurs, the longest match first. Other text between two white spaces or
    entries is one unknown token.
    """
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    backend = Backend(models.BPE(ids, [], unk_token=names["unk"], fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Fuse()
    several = [token for token in ids if len(token) > 1 and token not in names.values()]
    backend.add_tokens([AddedToken(token, normalized=False) for token in several])
    return backend


def is_by_character(backend: Any) -> bool:
    """Returns whether `build` or `build_esm` made a backend."""
    unknown = {SPECIALS[1]: 0}
    ours = [
        build_esm(unknown, {"unk": SPECIALS[1]}),
        *(build(vocab, lowercase=fold) for vocab in (unknown, unknown | {" ": 1})
          for fold in (False, True)),
    ]  # fmt: skip
    is_joined = type(backend.decoder).__name__ == "Fuse"
    return is_joined and _form(backend) in map(_form, ours)


def _form(backend: Any) -> list[Any]:
    state = json.loads(backend.to_str())
    parts = [state[name] for name in ("normalizer", "pre_tokenizer", "decoder")]
    return [*parts, state["model"]["type"], state["model"].get("merges")]


class CharacterTable:
    """Encodes sentences as `encode` does; faster and with less memory for ASCII text."""

    def __init__(
        self, encode: Callable[[list[str]], list[list[int]]], tokens: Collection[str], unknown: int
    ) -> None:
        """`encode` returns the ids of texts, `tokens` are matched before the text is split, and
        `unknown` is the id of the unknown token.
        """
        self._encode, self._tokens = encode, tokens
        self._ids = np.full(128, -1, np.int64)
        for code, ids in enumerate(encode([chr(code) for code in range(128)])):
            # Runs of white space are one token or none: the table only contains single spaces.
            is_single = chr(code) == " " or not chr(code).isspace()
            if is_single and len(ids) == 1 and ids[0] != unknown:
                self._ids[code] = ids[0]

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the concatenated ids of all sentences, and the length of each: int64."""
        found = [self._look_up(sentence) for sentence in sentences]
        others = [s for s, ids in zip(sentences, found, strict=True) if ids is None]
        rest = iter(self._encode(others))
        whole = [np.array(next(rest), np.int64) if ids is None else ids for ids in found]
        lengths = np.fromiter(map(len, whole), np.int64, len(whole))
        return np.concatenate([np.empty(0, np.int64), *whole]), lengths

    def _look_up(self, sentence: str) -> np.ndarray | None:
        """Returns the ids of a sentence, None if the sentence needs the backend."""
        if not sentence.isascii() or "  " in sentence:
            return None
        ids = self._ids[np.frombuffer(sentence.encode(), np.uint8)]
        is_known = ids.min(initial=0) >= 0 and not any(map(sentence.__contains__, self._tokens))
        return ids if is_known else None
