"""SentencePiece unigram models: trained by `sentencepiece`, converted to `tokenizers`.

The two libraries do not always return the same ids. A `.model` is therefore converted when it is
trained or loaded, and only `tokenizers` encodes text.
"""

import io
import re
from pathlib import Path
from typing import Any

from bert_jax.data.tokenizer import byte_level_bpe, tokenizer_files
from bert_jax.data.tokenizer.tokenizer_files import refused_by_library
from bert_jax.data.tokenizer.wordpiece_model import SPECIALS
from bert_jax.errors import UsageError, brief

# The fields used here, with the numbers of sentencepiece_model.proto (google/sentencepiece):
# name, number, type (1 double, 2 float, 5 int32, 8 bool, 9 string, 11 message, 12 bytes), default.
# `sentencepiece` ships a generated module, but each release requires the newest protobuf, which
# TensorFlow's upper bound may exclude; this description works with any version.
_MESSAGES = {
    "TrainerSpec": [
        ("model_type", 3, 5, "1"),
        ("split_by_whitespace", 22, 8, "true"),
        ("treat_whitespace_as_suffix", 24, 8, "false"),
        ("byte_fallback", 35, 8, "false"),
    ],
    "NormalizerSpec": [
        ("name", 1, 9, None),
        ("precompiled_charsmap", 2, 12, None),
        ("add_dummy_prefix", 3, 8, "true"),
        ("remove_extra_whitespaces", 4, 8, "true"),
    ],
    "Piece": [("piece", 1, 9, None), ("score", 2, 2, None), ("type", 3, 5, "1")],
}
_MODEL_FIELDS = [
    ("pieces", 1, "Piece"),
    ("trainer", 2, "TrainerSpec"),
    ("normalizer", 3, "NormalizerSpec"),
]
# The normalizations with a composed result, as in Unicode's NFKC.
_COMPOSING = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf")
_NORMAL, _UNKNOWN, _USER_DEFINED = 1, 2, 4
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


# The vocabularies of fairseq, which renumbers SentencePiece's ids: the tokens that replace the
# first pieces, and the number of replaced pieces; <mask> is the last id (transformers 4.57 and
# 5.24, convert_slow_tokenizer.py). A token without a score has the score 0.
FAIRSEQ = {
    "XLMRoberta": (("<s>", "<pad>", "</s>", "<unk>"), 3),
    "Camembert": (("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), 1),
}
_FAIRSEQ_UNKNOWN = 3
# Expected counts are summed in this many fixed shares, one thread per share: the result depends on
# the number of shares, not on cores or thread timing. 16 is the library's default.
_TRAINING_SHARES = 16


def train(texts: list[str], *, vocab_size: int, lowercase: bool) -> bytes:
    """Returns a serialized unigram model with [PAD] [UNK] [CLS] [SEP] [MASK] as ids 0 to 4.

    Text is normalized by `nmt_nfkc`, or by `nmt_nfkc_cf` (case folding) if `lowercase`. Raises
    `UsageError` with the smallest or largest possible size if `vocab_size` is out of range.
    """
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece=SPECIALS[0],
            unk_piece=SPECIALS[1],
            control_symbols=list(SPECIALS[2:]),
            # The caller sampled already: use every line, in order, however long it is.
            input_sentence_size=0,
            shuffle_input_sentence=False,
            max_sentence_length=1 << 30,
            num_threads=_TRAINING_SHARES,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _training_error(str(error), vocab_size) from error
    return model.getvalue()


def _training_error(message: str, vocab_size: int) -> UsageError:
    if found := re.search(r"Vocabulary size too high.*<= (\d+)", message):
        return UsageError(
            f"vocabulary size {vocab_size} is too large for this text: SentencePiece finds at most "
            f"{found[1]} tokens in it; ask for {found[1]} or fewer, or give more text"
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UsageError(
            f"vocabulary size {vocab_size} is too small for this text: its characters and the "
            f"special tokens need at least {found[1]}"
        )
    return UsageError(f"SentencePiece could not be trained on this text: {message.strip()}")


def load(path: Path, config: dict[str, Any]) -> Any:
    """Returns the backend of a `.model` for the class that `config` (tokenizer_config.json) or
    config.json names.
    """
    try:
        serialised = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    kind, _ = tokenizer_files.class_of(path, config)
    family = None if kind in tokenizer_files.GENERIC else kind
    backend = convert(serialised, source=str(path), family=family)
    if family in FAIRSEQ:
        byte_level_bpe.pair_as_roberta(backend)
    return backend


def convert(serialised: bytes, *, source: str, family: str | None = None) -> Any:
    """Returns the `tokenizers.Tokenizer` that encodes as the model does. Errors name `source`.

    `family` is the model's class in transformers without "Tokenizer": XLMRoberta and Camembert have
    separate ids (`FAIRSEQ`). In both a word may begin after a special token, and the mask absorbs
    the space before it. Raises `UsageError` for bytes that are not a complete SentencePiece model,
    and for model types other than unigram.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models
    from tokenizers import normalizers as normalizing
    from tokenizers.pre_tokenizers import Metaspace

    model = _parse(serialised, source)
    kind = _MODEL_TYPES.get(model.trainer.model_type, "unknown")
    if kind != "unigram":
        raise UsageError(
            f"{source} is a SentencePiece model of type {kind}; only unigram is supported"
        )
    if model.trainer.treat_whitespace_as_suffix:
        raise UsageError(
            f"{source} marks the ends of words (treat_whitespace_as_suffix): unsupported"
        )
    unknown = [i for i, piece in enumerate(model.pieces) if piece.type == _UNKNOWN]
    if len(unknown) != 1:
        raise UsageError(f"{source} has {len(unknown)} unknown pieces; a model has exactly one")

    pieces, unknown_id, mask = _scored(model.pieces), unknown[0], "[MASK]"
    if family in FAIRSEQ:
        (first, dropped), unknown_id, mask = FAIRSEQ[family], _FAIRSEQ_UNKNOWN, "<mask>"
        unscored = [(name, -100.0 * (name == "<unk>NOTUSED")) for name in first]
        pieces = [*unscored, *pieces[dropped:], (mask, 0.0)]
    steps = []
    with refused_by_library(f"{source} is a SentencePiece model, but damaged"):
        tokenizer = Tokenizer(models.Unigram(pieces, unknown_id, model.trainer.byte_fallback))
        if model.normalizer.precompiled_charsmap:
            steps.append(normalizing.Precompiled(model.normalizer.precompiled_charsmap))
    if steps and model.normalizer.name in _COMPOSING:
        # `Precompiled` drops or keeps the marks of letters that are not composed, and does not
        # compose half-width kana.
        steps = [normalizing.NFC(), *steps, normalizing.NFC()]
    has_prefix = model.normalizer.add_dummy_prefix
    if model.normalizer.remove_extra_whitespaces:
        # A space on the left is the prefix of the text, or follows a [MASK].
        steps += [normalizing.Strip(left=not has_prefix), normalizing.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizing.Sequence(steps)
    # With "always", as in the classes of transformers, a space would follow every [MASK], which
    # never occurs in training examples.
    prepend = ("always" if family else "first") if has_prefix else "never"
    tokenizer.pre_tokenizer = Metaspace(
        prepend_scheme=prepend, split=model.trainer.split_by_whitespace
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    if family:
        tokenizer.add_special_tokens([AddedToken(mask, lstrip=True, normalized=False)])
    return tokenizer


def _scored(pieces: Any) -> list[tuple[str, float]]:
    """Returns pieces with scores that make `tokenizers` choose the same segmentation.

    SentencePiece prefers a user-defined symbol to any other segmentation of its characters, by a
    score that it computes while encoding (unigram_model.cc, EncodeOptimized); here the score is
    stored. Nine digits are enough for a 32-bit score. The reader of tokenizer.json is not exact
    beyond fifteen digits, so longer scores would change in the last place.
    """
    best = max((piece.score for piece in pieces if piece.type == _NORMAL), default=0.0)

    def score(piece: Any) -> float:
        if piece.type == _USER_DEFINED:
            return len(piece.piece.encode()) * best - 0.1
        return piece.score

    return [(piece.piece, float(f"{score(piece):.9g}")) for piece in pieces]


def _parse(serialised: bytes, source: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="unigram.proto", package="unigram")
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for field, number, type_, default in fields:
            described.field.add(
                name=field, number=number, type=type_, label=1, default_value=default
            )
    described = file.message_type.add(name="Model")
    for field, number, type_ in _MODEL_FIELDS:
        label = 3 if field == "pieces" else 1  # repeated, optional
        described.field.add(
            name=field, number=number, type=11, type_name=f".unigram.{type_}", label=label
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    model: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("unigram.Model"))()
    try:
        model.ParseFromString(serialised)
    except message.DecodeError as error:
        raise UsageError(f"{source} is not a SentencePiece model: {error}") from error
    if not model.pieces:
        raise UsageError(f"{source} is not a SentencePiece model: it holds no pieces")
    for number, piece in enumerate(model.pieces):
        if not isinstance(piece.piece, str):  # bytes that are not UTF-8
            raise UsageError(f"{source} is a SentencePiece model, but damaged: piece {number} is "
                             f"{brief(piece.piece)}, which is not UTF-8")  # fmt: skip
    return model
