"""BERT's WordPiece: builds the backend around a vocabulary, and trains vocabularies."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.language import scripts
from bert_jax.data.tokenizer import casing, special_tokens, tokenizer_files
from bert_jax.errors import UsageError, brief

# Ids 0 to 4 of a trained vocabulary.
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Longer words are one [UNK]. Google's code has 200 (google-research/bert tokenization.py); later
# implementations, and the checkpoints trained with them, have 100.
_MAX_CHARS_PER_WORD = 100

# A trained alphabet has at most 1,000 characters and must cover 99.5 % of the text.
_MAX_ALPHABET = 1000
_MIN_COVERAGE = 0.995
_MIN_FREQUENCY = 2
_LINES_PER_CALL = 8192
# A smaller share of a script's letters is treated as quotations.
_FEW_LETTERS = 0.01


def build(vocab: dict[str, int], *, unknown: str = "[UNK]", **settings: Any) -> Any:
    """Returns the `tokenizers.Tokenizer` that encodes as `BertTokenizer` does, except for special
    tokens; `settings` are passed to `bert_backend`.
    """
    from tokenizers import models

    model = models.WordPiece(vocab, unk_token=unknown, max_input_chars_per_word=_MAX_CHARS_PER_WORD)
    return bert_backend(model, **settings)


def is_bert(state: dict[str, Any]) -> bool:
    """Returns whether a serialized backend cleans and splits text as `BertTokenizer` does."""
    parts = [state.get("normalizer"), state.get("pre_tokenizer")]
    return [part and part["type"] for part in parts] == ["BertNormalizer", "BertPreTokenizer"]


def load(path: Path, config: dict[str, Any], lowercase: bool | None) -> tuple[Any, dict[str, str]]:
    """Returns the backend of a vocab.txt, and its special tokens by role.

    `config` is the content of tokenizer_config.json in the same directory. `lowercase` None is read
    from it, else inferred from the entries (casing.py).
    """
    # Text mode turns \r\n into \n; str.splitlines would also split at U+2028, a possible token.
    lines = tokenizer_files.read_text(path).removesuffix("\n").split("\n")
    # Ids are line numbers: an empty line keeps its id, as a token that never occurs in text.
    tokens = [line or f"[empty line {number}]" for number, line in enumerate(lines, start=1)]
    first_line: dict[str, int] = {}
    for number, token in enumerate(tokens, start=1):
        if token in first_line:
            raise UsageError(
                f"{path}: {token!r} is on line {first_line[token]} and again on line {number}; "
                "each token has one id"
            )
        first_line[token] = number
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer_files.require_no_added_tokens(path, ids, config)
    if lowercase is None:
        lowercase = config.get("do_lower_case")
    if lowercase is None:
        special = {name for names in special_tokens.USUAL.values() for name in names}
        lowercase = casing.lowers(tokens, special, str(path))
        kind, named = tokenizer_files.class_of(path, config)
        if not lowercase and tokenizer_files.with_implied(config, kind).get("do_lower_case"):
            raise UsageError(
                f"{path}: many entries have capitals, but {named} has tokenizer_class "
                f'{kind}Tokenizer, which lower-cases text unless "do_lower_case": false is in '
                "tokenizer_config.json; write true or false there, as in the model's training"
            )
    names = special_tokens.find(ids, special_tokens.configured(config), str(path), kind="wordpiece")
    backend = build(
        ids,
        lowercase=lowercase,
        unknown=names["unk"],
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
    return backend, names


def has_long_runs(lines: list[str]) -> bool:
    """Returns whether more than 1 % of the letters belong to scripts written without spaces."""
    found: Counter[str] = Counter()
    for start in range(0, len(lines), _LINES_PER_CALL):
        found.update(scripts.count("".join(lines[start : start + _LINES_PER_CALL])))
    return sum(found[name] for name in scripts.RUN_TOGETHER) > _FEW_LETTERS * found.total()


def from_words(state: dict[str, Any], *, source: str) -> dict[str, Any]:
    """Returns a tokenizer.json of whole words (WordLevel) converted to WordPiece with equal ids.

    Without continuation tokens, WordPiece also encodes a word as one token or as unknown. Raises
    UsageError if the vocabulary has continuation tokens.
    """
    vocab = state["model"]["vocab"]
    if within := [token for token in vocab if token.startswith("##")]:
        raise UsageError(
            f"{source}: model WordLevel is read as WordPiece, where {brief(within[0])} would "
            "continue a word; train another tokenizer, such as wordpiece, on the text"
        )
    model = {
        "type": "WordPiece",
        "vocab": vocab,
        "unk_token": state["model"]["unk_token"],
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": max(_MAX_CHARS_PER_WORD, *map(len, vocab)),
    }
    return {**state, "model": model}


def train(lines: list[str], *, vocab_size: int, **settings: Any) -> list[str]:
    """Returns at most `vocab_size` tokens, sorted by id: special tokens, then by falling frequency;
    `settings` are passed to `bert_backend`.

    The result depends only on the content of `lines`, not on threads or hash seeds. Raises
    `UsageError` if the text has more characters than fit into `vocab_size`.
    """
    from tokenizers import models, trainers

    # The distinct words, to find the characters that occur after the first one.
    words = bert_backend(models.WordLevel(unk_token="[UNK]"), **settings)
    alphabet = _alphabet(lines, vocab_size=vocab_size, normalizer=words.normalizer)
    words.train_from_iterator(
        lines,
        trainers.WordLevelTrainer(vocab_size=1 << 40, show_progress=False, special_tokens=[]),
    )
    inner = {character for word in words.get_vocab() for character in word[1:]}
    continuing = sorted("##" + character for character in inner.intersection(alphabet))
    units = [*SPECIALS, *alphabet, *continuing]
    if len(units) > vocab_size:
        raise UsageError(
            f"vocabulary size {vocab_size} is too small for this text: its characters and the "
            f"special tokens need at least {len(units)}"
        )

    # The trainer numbers ##-characters in the order of a hash map, and breaks ties between equally
    # frequent pairs by these numbers, so that the chosen tokens differ from run to run. Passing
    # every unit as a "special" token fixes the numbers.
    trained = bert_backend(models.WordPiece(unk_token="[UNK]"), **settings)
    trained.train_from_iterator(
        lines,
        trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=_MIN_FREQUENCY,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            special_tokens=units,
            show_progress=False,
        ),
    )
    found = sorted(set(trained.get_vocab()).difference(SPECIALS))
    tokens = {token: i for i, token in enumerate([*SPECIALS, *found])}
    counts = _counts(lines, list(tokens), build(tokens, **settings))
    return [*SPECIALS, *sorted(found, key=lambda token: (-counts[token], token))]


def count_characters(lines: list[str], normalizer: Any) -> Counter[str]:
    """Returns how often each character occurs after normalization, which is applied to one
    character at a time, as BERT's normalizer works.
    """
    raw = np.zeros(0x110000, dtype=np.int64)
    for start in range(0, len(lines), _LINES_PER_CALL):
        points = scripts.points("".join(lines[start : start + _LINES_PER_CALL]))
        raw += np.bincount(points, minlength=len(raw))
    counts: Counter[str] = Counter()
    for point in np.flatnonzero(raw).tolist():
        for character in normalizer.normalize_str(chr(point)):
            counts[character] += int(raw[point])
    return counts


def _counts(lines: list[str], tokens: list[str], backend: Any) -> dict[str, int]:
    """Returns how often each token occurs when the lines are encoded with them."""
    counts = np.zeros(len(tokens), dtype=np.int64)
    for start in range(0, len(lines), _LINES_PER_CALL):
        encodings = backend.encode_batch_fast(lines[start : start + _LINES_PER_CALL])
        ids = np.fromiter((i for encoding in encodings for i in encoding.ids), dtype=np.int64)
        counts += np.bincount(ids, minlength=len(tokens))
    return dict(zip(tokens, counts.tolist(), strict=True))


def _alphabet(lines: list[str], *, vocab_size: int, normalizer: Any) -> list[str]:
    """Returns the characters of the alphabet, sorted: the most frequent ones after normalization.

    At most `_MAX_ALPHABET`, and at most a quarter of the vocabulary, since nearly every character
    needs two tokens, with and without ##. Words with any other character become [UNK].
    """
    counts = count_characters(lines, normalizer)
    counts = {character: n for character, n in counts.items() if not character.isspace()}
    ranked = sorted(counts, key=lambda character: (-counts[character], character))[:_MAX_ALPHABET]
    room = vocab_size // 4
    covered = np.cumsum([counts[character] for character in ranked])
    total = sum(counts.values())
    wanted = _MIN_COVERAGE * total
    if ranked and covered[-1] < wanted:
        raise UsageError(
            f"this text has {len(counts):,} different characters; a trained WordPiece vocabulary "
            f"keeps {_MAX_ALPHABET:,}, which cover "
            f"{covered[-1] / total:.1%} of it, and words with other characters become [UNK]: train "
            "with `tokenizer` sentencepiece, or name a published vocab.txt"
        )
    enough = int(np.searchsorted(covered, wanted)) + 1 if ranked else 0
    if room < enough:
        raise UsageError(
            f"vocabulary size {vocab_size} is too small for this text, which has "
            f"{len(counts)} different characters; use at least {4 * enough}"
        )
    return sorted(ranked[:room])


def bert_backend(
    model: Any,
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    handle_chinese_chars: bool = True,
    cuts_runs: bool = False,
) -> Any:
    """Returns `model` with BERT's text cleaning and word splitting in front of it.

    `cuts_runs` splits long runs of letters in scripts without spaces. `BertTokenizer` would read
    such a run as one word, which becomes [UNK] if it is too long.
    """
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    backend = Backend(model)
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=handle_chinese_chars,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if cuts_runs:
        letter, most = scripts.run_together(), _MAX_CHARS_PER_WORD
        # A long run is split before a letter, so that a mark stays with its letter.
        run = Regex(f"(?={letter}{{{most + 1}}}){letter}{{{most - 20},{most}}}(?!\\p{{M}})")
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [backend.pre_tokenizer, pre_tokenizers.Split(run, "isolated")]
        )
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend
