"""One class for WordPiece, SentencePiece, byte-level BPE and character tokenizers: loads, saves and
encodes; training.py trains new vocabularies.

`tokenizers` does all the encoding. WordPiece returns the ids of `BertTokenizer`, byte-level BPE the
ids of `RobertaTokenizerFast`; a SentencePiece model is converted when it is trained or loaded.
`Tokenizer.hash` covers everything that decides ids.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax import strict_json
from bert_jax.data.tokenizer import (
    byte_level_bpe,
    characters,
    chunk_cache,
    hub,
    probe,
    sentencepiece_model,
    special_tokens,
    tokenizer_files,
    tokenizer_hash,
    wordpiece_model,
)
from bert_jax.errors import UsageError

# A character outside every vocabulary, which fails in a model without an unknown token.
_UNKNOWN = "a \U0010fffd"
_KINDS = {"WordPiece": "wordpiece", "Unigram": "sentencepiece", "BPE": "bpe"}


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """The ids of BERT's five special tokens."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


class Vocabulary(NamedTuple):
    """The ids of a corpus: the special ids, the number of ids, and which ids begin a word
    (words.py; None if that is not needed).
    """

    special: SpecialIds
    size: int
    begins_word: np.ndarray | None = None


class Tokenizer:
    """Converts text to ids and back. Made by `load_tokenizer` or by training.py.

    `kind` is "wordpiece", "sentencepiece", "bpe" or "characters"; `vocab_size` is the highest id
    + 1, the smallest number of rows of an embedding; `special` holds the special ids;
    `pair_separators` is the number of separators between two texts (two for RoBERTa).
    `is_byte_level` is true if text is split into bytes. Can be pickled.

    Two fields are observed by the constructor. `word_prefix` precedes a word that is not the first
    of its text: a space if the ids depend on it, as in byte-level BPE and Gemma's vocabulary.
    `word_marks` decides by a token's name whether the token begins a word.
    """

    def __init__(self, backend: Any, *, source: str, names: dict[str, str] | None = None):
        """`backend` is a `tokenizers.Tokenizer`, which the caller must not use afterwards.

        Errors name `source`. `names` maps roles ("pad", "unk", "cls", "sep", "mask") to tokens if
        they are known; the other roles are found by their usual names.
        """
        model = type(backend.model).__name__
        if model not in _KINDS:
            raise UsageError(
                f"{source}: model {model} is not supported; use WordPiece, Unigram or BPE"
            )
        self.kind: str = "characters" if characters.is_by_character(backend) else _KINDS[model]
        self.is_byte_level = self.kind == "bpe" and byte_level_bpe.is_byte_level(backend)
        names = names or {}
        if self.is_byte_level:
            names = byte_level_bpe.with_unknown_token(backend, names)
        vocab = backend.get_vocab(with_added_tokens=True)
        tokenizer_files.require_ids(vocab, source)
        self._names = special_tokens.find(vocab, names, source, kind=self.kind)
        # Special tokens are matched before the text is split, so that [MASK] in a text is one id.
        # Tokens that the file registers keep their settings.
        self._backend = backend
        registered = self.special_names
        backend.add_special_tokens([n for n in self._names.values() if n not in registered])
        ids = {role: backend.token_to_id(name) for role, name in self._names.items()}
        self.special = SpecialIds(**ids)
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        backend.no_truncation()
        backend.no_padding()
        self.pair_separators = 2 if backend.num_special_tokens_to_add(is_pair=True) == 4 else 1
        with tokenizer_files.refused_by_library(f"{source} cannot encode text"):
            backend.encode(_UNKNOWN)
            one, two = (backend.encode(t, add_special_tokens=False).ids for t in ("a", "a a"))
            backend.encode(probe.TEXT)
        self.word_prefix = "" if two == one + one else " "
        self._source, self._wrong_offset = source, None
        # RoBERTa's files trim the space before a word. If an earlier step already removed the
        # space, trimming would remove the word's first letter.
        for trims in (True, False) if self.is_byte_level else (False,):
            self._trims_offsets = trims
            self._set_template(segments=2)
            observed = backend.encode(probe.TEXT, add_special_tokens=False)
            normalize = getattr(backend.normalizer, "normalize_str", str)
            self._wrong_offset = probe.wrong_offset(observed, self.text_of, normalize)
            if not self._wrong_offset:
                break
        inside = getattr(backend.model, "continuing_subword_prefix", None)
        special = vars(self.special).values()
        self.word_marks = probe.word_marks(observed, special, inside=inside)

    @property
    def lowercase(self) -> bool:
        """Returns whether upper-case text has the ids of lower-case text."""
        normalizer = self._backend.normalizer
        return normalizer is not None and normalizer.normalize_str("A") == "a"

    @property
    def strips_accents(self) -> bool:
        """Returns whether a letter with a mark has the ids of the letter without it."""
        normalizer = self._backend.normalizer
        return normalizer is not None and normalizer.normalize_str("\u00e9") == "e"

    @property
    def special_names(self) -> list[str]:
        """Returns the tokens that are matched before a text is split."""
        return [token.content for token in self._backend.get_added_tokens_decoder().values()]

    def encode_sentences(self, sentences: list[str]) -> list[list[int]]:
        """Returns the ids of each sentence without special tokens around it.

        Uses all cores unless TOKENIZERS_PARALLELISM=false. All ids are held in memory.
        """
        encodings = self._backend.encode_batch_fast(sentences, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_running_text(
        self, sentences: list[str], joined: Sequence[bool] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the concatenated ids of `encode_sentences`, and the length of each sentence:
        int64. Faster for large texts, because it caches words.

        A sentence that is `joined` to the one before it gets no additional "▁".
        """
        if self._chunks is not None:
            return self._chunks.encode(sentences)
        if not any(joined) or self._inside is None:
            return chunk_cache.flat(self.encode_sentences(sentences))
        apart, inside = (list(compress(sentences, [j == side for j in joined])) for side in (0, 1))
        found = self._inside.encode_batch_fast(inside, add_special_tokens=False)
        ids = iter(self.encode_sentences(apart)), (encoding.ids for encoding in found)
        return chunk_cache.flat([next(ids[is_joined]) for is_joined in joined])

    @cached_property
    def _inside(self) -> Any | None:
        """Returns the backend for text that begins inside a word, None if it is this backend."""
        return tokenizer_files.without_prefix(self._backend)

    @cached_property
    def _chunks(self) -> chunk_cache.ChunkCache | characters.CharacterTable | None:
        tokens = self.special_names
        if self.kind == "characters":
            return characters.CharacterTable(self.encode_sentences, tokens, self.special.unk)
        if self.kind != "wordpiece" or any(len(token.split()) > 1 for token in tokens):
            return None
        is_bert = wordpiece_model.is_bert(json.loads(self._backend.to_str()))
        return chunk_cache.ChunkCache(self.encode_sentences, tokens) if is_bert else None

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `[CLS] text [SEP]`."""
        return self._backend.encode(text).ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids without special tokens, and the characters (first, last + 1) of each,
        with or without the surrounding white space.

        Raises UsageError if the offsets of the probe text were wrong.
        """
        if self._wrong_offset:
            raise UsageError(
                f"{self._source} returns wrong offsets: {self._wrong_offset}, so text cannot be "
                "split at its tokens; use another tokenizer"
            )
        encoding = self._backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: list[int]) -> str:
        """Returns readable text, without special tokens and what normalization removed."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def text_of(self, id_: int) -> str:
        """Returns the text of a token that follows another token, with its space: " horse", "ing";
        "" for a special token. Part of a character is "\ufffd".
        """
        first, text = self._first_token
        return self.decode([first, id_])[len(text) :]

    @cached_property
    def _first_token(self) -> tuple[int, str]:
        """Returns the first id that decodes to whole characters, and its text."""
        texts = ((id_, self.decode([id_])) for id_ in range(self.vocab_size))
        return next(((i, t) for i, t in texts if t.strip() and "\ufffd" not in t), (0, ""))

    def tokens(self, ids: list[int]) -> list[str]:
        """Returns the token of each id, and the unknown token for an id without a token."""
        unknown = self._names["unk"]
        return [self._backend.id_to_token(int(id_)) or unknown for id_ in ids]

    @cached_property
    def hash(self) -> str:
        """Returns the SHA-256 of everything that decides ids; the layout of files is excluded.

        Two tokenizers with the same hash return the same ids for every text.
        """
        return tokenizer_hash.sha256(
            self._backend,
            kind=self.kind,
            special=asdict(self.special),
            pair_separators=self.pair_separators,
        )

    def _set_template(self, *, segments: int) -> None:
        """Sets the special tokens around a text and between two texts: [CLS] A [SEP] B [SEP], or
        <s> A </s> </s> B </s>. With one segment, both texts have the segment id 0.
        """
        from tokenizers import processors

        cls, sep, second = self._names["cls"], self._names["sep"], min(segments, 2) - 1
        between = " ".join([f"{sep}:0"] * self.pair_separators)
        template = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {between} $B:{second} {sep}:{second}",
            special_tokens=[(cls, self.special.cls), (sep, self.special.sep)],
        )
        if self._trims_offsets:
            trimming = processors.ByteLevel(trim_offsets=True)
            template = processors.Sequence([trimming, template])
        self._backend.post_processor = template

    def save(
        self,
        directory: Path,
        *,
        model_max_length: int = 512,
        segments: int | None = None,
        is_for_words: bool = False,
    ) -> None:
        """Writes tokenizer.json, tokenizer_config.json and vocab.txt (WordPiece) or vocab.json and
        merges.txt (byte-level BPE).

        `load_tokenizer` and `transformers.AutoTokenizer.from_pretrained` return the same ids from
        them. `segments` is the model's number of segments; None means one for RoBERTa's pairs, else
        two. With `is_for_words`, a text gets `word_prefix`, for models that read single words.
        """
        segments = segments or (1 if self.pair_separators > 1 else 2)
        directory.mkdir(parents=True, exist_ok=True)
        self._set_template(segments=segments)
        backend = self._backend
        if is_for_words and self.word_prefix:
            backend = tokenizer_files.with_prefix(backend)
        text = backend.to_str(pretty=True)
        tokenizer_files.write_text(directory / "tokenizer.json", text)
        self._set_template(segments=2)  # saving does not change encoding
        state = json.loads(text)
        config: dict[str, Any] = {f"{role}_token": name for role, name in self._names.items()}
        config["model_max_length"] = model_max_length
        config |= tokenizer_files.class_fields(state, wordpiece_model.is_bert(state), segments)
        tokenizer_files.write_text(
            directory / "tokenizer_config.json", json.dumps(config, indent=2, sort_keys=True)
        )
        if self.kind == "wordpiece":  # an id without a token is an empty line
            lines = (backend.id_to_token(id_) or "" for id_ in range(self.vocab_size))
            tokenizer_files.write_text(directory / "vocab.txt", "\n".join(lines))
        if self.is_byte_level:
            byte_level_bpe.save(directory, self._backend)


def load_tokenizer(
    path: str | Path, *, lowercase: bool | None = None, strip_accents: bool | None = None
) -> Tokenizer:
    """Returns the tokenizer in a directory, `vocab.txt`, `tokenizer.json`, `vocab.json` (with
    `merges.txt` in the same directory), or SentencePiece `.model`.

    A directory is searched for tokenizer.json, vocab.txt, vocab.json and one `.model`, in this
    order; a workdir or a step in it for its tokenizer. For a `vocab.txt`, `lowercase` None reads
    tokenizer_config.json in the same directory, else infers the case from the entries
    (casing.py). `strip_accents` controls marks; None strips them if a `vocab.txt` lower-cases text.
    The other files define both settings: the arguments are only compared with them. Raises
    `UsageError` for a tokenizer that cannot be loaded.
    """
    path = hub.located(path)
    file = tokenizer_files.find(path) if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"tokenizer {path}: no such file or directory{hub.advice(path)}")
    if advice := hub.pickle_advice(file):
        raise UsageError(f"tokenizer {advice}")
    config = tokenizer_files.read_config(file.parent / "tokenizer_config.json")
    backend, names = _loaded(file, config, lowercase, strip_accents)
    # Some tokenizer.json put other special tokens around a text.
    theirs = special_tokens.examples(backend) if _is_whole(file) else None
    tokenizer = Tokenizer(backend, source=str(file), names=names)
    if theirs is not None:
        ours = special_tokens.examples(backend)
        special_tokens.note_other_forms(theirs, ours, source=str(file))
    tokenizer_files.require_extra_tokens(file, config, tokenizer.special_names)
    if file.suffix == ".model" and lowercase is None:
        lowercase = config.get("do_lower_case") or None
    case = "lower-cases" if tokenizer.lowercase else "keeps the case of"
    accents = "strips accents from" if tokenizer.strips_accents else "keeps accents in"
    for option, asked, found, does in (
        ("lowercase", lowercase, tokenizer.lowercase, case),
        ("strip_accents", strip_accents, tokenizer.strips_accents, accents),
    ):
        if asked is not None and asked != found:
            raise UsageError(f"{file} {does} text; it cannot be loaded with {option}={asked}")
    return tokenizer


# --- loading --------------------------------------------------------------------------------------


def _is_whole(path: Path) -> bool:
    """Returns whether a file is a tokenizer.json, which defines all steps of a tokenizer."""
    return path.suffix == ".json" and not byte_level_bpe.is_file_of(path)


def _loaded(
    path: Path, config: dict[str, Any], lowercase: bool | None, strip_accents: bool | None
) -> tuple[Any, dict[str, str]]:
    """Returns the backend of a file, and the known special tokens by role."""
    if characters.is_esm(path, config):
        return characters.load_esm(path, config)
    tokenizer_files.require_class(path, config)
    if byte_level_bpe.is_file_of(path):
        return byte_level_bpe.load(path.parent, config), special_tokens.configured(config)
    if _is_whole(path):
        return _load_json(path, config)
    if path.suffix == ".model":
        return sentencepiece_model.load(path, config), special_tokens.configured(config)
    if strip_accents is not None:
        config = {**config, "strip_accents": strip_accents}
    return wordpiece_model.load(path, config, lowercase)


def _load_json(path: Path, config: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    from tokenizers import Tokenizer as Backend

    text = tokenizer_files.read_text(path)
    strict_json.parse_file(path, text)
    with tokenizer_files.refused_by_library(f"{path} is JSON, but not a tokenizer.json"):
        backend = Backend.from_str(text)
    if getattr(backend.model, "dropout", None):
        # Dropout skips merges at random (Provilkov et al. 2020): a text would have other ids each
        # time.
        backend.model.dropout = None
    # Checked first: the library counts up to the highest id to serialize a vocabulary.
    tokenizer_files.require_ids(backend.get_vocab(with_added_tokens=True), str(path))
    state = json.loads(backend.to_str())
    if state["model"]["type"] == "WordLevel":
        state = wordpiece_model.from_words(state, source=str(path))
        backend = Backend.from_str(json.dumps(state))
    tokenizer_files.require_agreement(state, config, path)
    with tokenizer_files.refused_by_library(f"{path} cannot encode text"):
        (one, _) = special_tokens.examples(backend)
    return backend, special_tokens.around(one) | special_tokens.configured(config)
