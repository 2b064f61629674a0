"""BERT's five special tokens, under the names that different vocabularies use for them."""

from collections.abc import Container, Sequence
from typing import Any

from bert_jax.errors import UsageError
from bert_jax.progress import note_once

# The names of each special token: BERT's first, then the names in RoBERTa, ALBERT and XLM-R.
USUAL = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
# The sets of published models: BERT, ALBERT, RoBERTa, and SentencePiece models.
_SETS = (
    ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    ("<pad>", "<unk>", "<s>", "</s>", "<mask>"),
    ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>"),
)


def configured(config: dict[str, Any]) -> dict[str, str]:
    """Returns the special tokens that a tokenizer_config.json names, as strings or as objects with
    flags.
    """
    names = {}
    for role in USUAL:
        value = config.get(f"{role}_token")
        name = value.get("content") if isinstance(value, dict) else value
        if isinstance(name, str):
            names[role] = name
    return names


def examples(backend: Any) -> list[Any]:
    """Returns the `tokenizers.Encoding` of a text and of a pair, not truncated or padded."""
    backend.no_truncation()
    backend.no_padding()
    return [backend.encode("a"), backend.encode("a", "a")]


def around(encoding: Any) -> dict[str, str]:
    """Returns the tokens that a tokenizer puts before and after a text, by role. Some configs do
    not name these tokens, and some, such as EuroBERT's, name them differently.
    """
    tokens, is_special = encoding.tokens, encoding.special_tokens_mask
    found = {"cls": tokens[0]} if is_special[:1] == [1] else {}
    return found | ({"sep": tokens[-1]} if is_special[1:][-1:] == [1] else {})


def note_other_forms(theirs: Sequence[Any], ours: Sequence[Any], *, source: str) -> None:
    """Prints a note if the special tokens of `examples` have other positions than in the model's
    tokenizer at `source`.
    """
    for what, before, after in zip(("a text", "a pair"), theirs, ours, strict=True):
        if before.ids != after.ids:
            forms = (" ".join(encoding.tokens) for encoding in (before, after))
            note_once(f"{source} encodes {what} as {' and bert-jax as '.join(forms)}, as BERT does")
            return


def find(vocab: Container[str], names: dict[str, str], source: str, *, kind: str) -> dict[str, str]:
    """Returns the token of each role, in the order of `USUAL`.

    `names` contains the known roles. The others are taken from the only complete set in the
    vocabulary; for WordPiece only BERT's set counts, because an unused entry may have any name.
    Raises UsageError if a role has no token, or two sets are complete.
    """
    whole = [found for found in _SETS if all(name in vocab for name in found)]
    if kind == "wordpiece":
        whole = whole[:1]
    preferred = {
        role: [chosen[number] for chosen in whole] for number, role in enumerate(USUAL)
    }  # fmt: skip
    found = {}
    for role, usual in USUAL.items():
        candidates = (names[role],) if role in names else (preferred[role] or usual)
        present = list(dict.fromkeys(name for name in candidates if name in vocab))
        if not present:
            raise UsageError(
                f"{source}: the vocabulary has no {' or '.join(candidates)} token, which BERT "
                "needs for training"
            )
        if len(present) > 1 and whole:
            raise UsageError(
                f"{source}: the vocabulary has {' and '.join(present)}; name one of them as "
                f"{role}_token in a tokenizer_config.json in the same directory"
            )
        found[role] = present[0]
    return found
