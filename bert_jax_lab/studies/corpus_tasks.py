"""Tasks with rows that are generated from a corpus, so that a study needs no other data.

All rows come from documents of the validation split, which pre-training does not read: seven in ten
documents for training, the other three for scoring. Both labels are made from the same sentences,
so that a random guess scores 50 %.

| rule | row | label 1 |
|---|---|---|
| `word_order` | a sentence | the words are shuffled |
| `bigram_shift` | a sentence | two neighboring words are swapped |
| `sentence_order` | two consecutive sentences | the sentences are swapped |
| `same_document` | two sentences | both are from the same document |

The first two rules use each sentence in both forms, with the same words: a model without positions
gives both forms the same label and is right on exactly one of them. `bigram_shift` is the task of
Conneau et al. 2018 ("What you can cram into a single vector"); `word_order` is easier, because all
words move.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from bert_jax.data.corpus.store import Corpus, Split, open_corpus
from bert_jax.data.language import scripts
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizer.words import readable
from bert_jax.errors import UsageError
from bert_jax.files import write_whole

# Tokens per sentence: enough words to have an order, and two sentences fit into a row of 64.
_SHORTEST, _LONGEST = 6, 28
_TRAINING_SHARE = 0.7
# The most rows of a split.
MOST_ROWS = 8192
_SEED = 20_177

Row = tuple[str, str, int]
# The sentences of a document, each a list of words; a word includes the space before it.
Document = list[list[str]]


def write_rows(corpus_directory: Path, rule: str, folder: Path) -> None:
    """Writes the rows that a rule makes from a corpus into a folder, as two TSV files.

    Raises UsageError for a corpus with too few sentences in its validation split.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = _documents(open_corpus(corpus_directory))
    for path, documents in zip(files_of(folder), parts, strict=True):
        rows = RULES[rule](documents, np.random.default_rng(_SEED))[:MOST_ROWS]
        if not rows:
            raise UsageError(
                f"corpus {corpus_directory} has too few sentences in its validation split for the "
                f"rows of rule {rule}; prepare it with a larger `validation_fraction`"
            )
        lines = ("\t".join(map(str, row)) for row in [("a", "b", "label"), *rows])
        write_whole(path, "\n".join(lines) + "\n")


def _documents(corpus: Corpus) -> tuple[list[Document], list[Document]]:
    """Returns the validation documents for training and for scoring, in a random order."""
    tokenizer = load_tokenizer(corpus.directory / "tokenizer")
    split = corpus.validation
    documents = [
        [_words(split, sentence, tokenizer, corpus.begins_word) for sentence in range(first, end)]
        for first, end in zip(split.document_starts[:-1], split.document_starts[1:], strict=True)
    ]
    order = np.random.default_rng(_SEED).permutation(len(documents))
    cut = max(1, round(_TRAINING_SHARE * len(documents)))
    return [documents[i] for i in order[:cut]], [documents[i] for i in order[cut:]]


def _words(split: Split, sentence: int, tokenizer: Tokenizer, begins_word: np.ndarray) -> list[str]:
    """Returns the words of a sentence; [] if the sentence is too short or too long."""
    ids = split.sentence(sentence)
    if not _SHORTEST <= len(ids) <= _LONGEST:
        return []
    first = [0, *(i for i in range(1, len(ids)) if begins_word[ids[i]])]
    ends = [*first[1:], len(ids)]
    words = [
        tokenizer.decode([int(i) for i in ids[a:b]]).strip()
        for a, b in zip(first, ends, strict=True)
    ]
    if tokenizer.kind == "wordpiece":
        spaces = [True] * len(words)  # its tokens do not mark spaces
    else:
        names = readable(tokenizer, [int(ids[i]) for i in first])
        spaces = [name.startswith("▁") for name in names]
        # The first token may lack a mark for the space; the script decides whether words have one.
        spaces[0] = not scripts.is_spaceless(scripts.points(words[0][:1])).any()
    return [
        " " * has_space + word
        for word, has_space in zip(words, spaces, strict=True)
        if word and "\t" not in word
    ]


def _joined(words: list[str]) -> str:
    return "".join(words).strip()


def _sentences(documents: list[Document]) -> list[list[str]]:
    return [words for document in documents for words in document if words]


def word_order(documents: list[Document], draw: np.random.Generator) -> list[Row]:
    """Returns each sentence twice: unchanged, and with its words shuffled."""
    rows: list[Row] = []
    for words in _sentences(documents):
        if len(set(words)) < 3:
            continue
        moved = words
        while moved == words:
            moved = [words[i] for i in draw.permutation(len(words))]
        rows += [(_joined(words), "", 0), (_joined(moved), "", 1)]
    return rows


def bigram_shift(documents: list[Document], draw: np.random.Generator) -> list[Row]:
    """Returns each sentence twice: unchanged, and with two neighboring words swapped."""
    rows: list[Row] = []
    for words in _sentences(documents):
        places = [i for i in range(len(words) - 1) if words[i] != words[i + 1]]
        if not places:
            continue
        place = places[int(draw.integers(len(places)))]
        moved = [*words]
        moved[place : place + 2] = words[place + 1], words[place]
        rows += [(_joined(words), "", 0), (_joined(moved), "", 1)]
    return rows


def sentence_order(documents: list[Document], _: np.random.Generator) -> list[Row]:
    """Returns each pair of neighboring sentences twice: in order, and swapped."""
    rows: list[Row] = []
    for document in documents:
        for first, second in zip(document[:-1:2], document[1::2], strict=False):
            if first and second and first != second:
                a, b = _joined(first), _joined(second)
                rows += [(a, b, 0), (b, a, 1)]
    return rows


def same_document(documents: list[Document], draw: np.random.Generator) -> list[Row]:
    """Returns pairs of sentences of one document, and as many pairs of two documents."""
    kept = [found for document in documents if len(found := _sentences([document])) >= 2]
    rows: list[Row] = []
    if len(kept) < 2:
        return rows
    for number, sentences in enumerate(kept):
        for i in range(0, len(sentences) - 1, 2):
            other = (number + 1 + int(draw.integers(len(kept) - 1))) % len(kept)
            elsewhere = kept[other][int(draw.integers(len(kept[other])))]
            a = _joined(sentences[i])
            rows += [(a, _joined(sentences[i + 1]), 1), (a, _joined(elsewhere), 0)]
    return rows


RULES: dict[str, Callable[[list[Document], np.random.Generator], list[Row]]] = {
    "word_order": word_order,
    "bigram_shift": bigram_shift,
    "sentence_order": sentence_order,
    "same_document": same_document,
}
# Rules with two texts per row.
PAIRS = ("sentence_order", "same_document")


def columns_of(rule: str) -> tuple[str, ...]:
    """Returns the names of the text columns in the files of a rule."""
    return ("a", "b") if rule in PAIRS else ("a",)


def files_of(folder: Path) -> tuple[Path, Path]:
    """Returns the files in a folder of rows: for training and for scoring."""
    return folder / "train.tsv", folder / "dev.tsv"
