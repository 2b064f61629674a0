"""The five tokens that BERT gives a meaning, by whatever names a vocabulary has them."""

from collections.abc import Container, Sequence
from typing import Any

from bert_jax.errors import UsageError
from bert_jax.progress import note_once

# The names a special token goes by: BERT's first, then those of RoBERTa, ALBERT and XLM-R.
USUAL = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
# The sets that published models have: BERT, ALBERT, RoBERTa, and models of SentencePiece.
_SETS = (
    ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    ("<pad>", "<unk>", "<s>", "</s>", "<mask>"),
    ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>"),
)


def configured(config: dict[str, Any]) -> dict[str, str]:
    """Returns special tokens as a tokenizer_config.json names them: a string, or an object with
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
    """Returns the `tokenizers.Encoding` of a text and of a pair, whole and without padding."""
    backend.no_truncation()
    backend.no_padding()
    return [backend.encode("a"), backend.encode("a", "a")]


def around(encoding: Any) -> dict[str, str]:
    """Returns what a tokenizer puts before and behind a text as the tokens of these roles: not all
    configs name them, and some call them the first and the last one of a text (EuroBERT's).
    """
    tokens, is_special = encoding.tokens, encoding.special_tokens_mask
    found = {"cls": tokens[0]} if is_special[:1] == [1] else {}
    return found | ({"sep": tokens[-1]} if is_special[1:][-1:] == [1] else {})


def note_other_forms(theirs: Sequence[Any], ours: Sequence[Any], *, source: str) -> None:
    """Notes where the special tokens of `examples` stand elsewhere than the model's own tokenizer,
    at `source`, puts them.
    """
    for what, before, after in zip(("a text", "a pair"), theirs, ours, strict=True):
        if before.ids != after.ids:
            forms = (" ".join(encoding.tokens) for encoding in (before, after))
            note_once(f"{source} encodes {what} as {' and bert-jax as '.join(forms)}, as BERT does")
            return


def find(vocab: Container[str], names: dict[str, str], source: str, *, kind: str) -> dict[str, str]:
    """Returns the token of each role, in the order of `USUAL`.

    `names` has those that are known. The others are those of the one set that the vocabulary holds
    whole; BERT's in a WordPiece vocabulary, where an unused entry may have any name. Raises
    UsageError if a role has no token, or two sets are whole.
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
                f"{source}: the vocabulary has no {' or '.join(candidates)} token, without which "
                "BERT cannot be trained"
            )
        if len(present) > 1 and whole:
            raise UsageError(
                f"{source}: the vocabulary has {' and '.join(present)}; say which one is the "
                f"{role}_token in a tokenizer_config.json beside it"
            )
        found[role] = present[0]
    return found
