"""Tasks whose rows are made of a corpus by a rule, so that a study needs no other data.

All rows come from held-out documents, which pre-training has not seen: seven in ten of them for
training, the others for scoring. Both labels are made of the same sentences, so that guessing has
50 %.

| rule | a row | label 1 |
|---|---|---|
| `word_order` | a sentence | its words are in another order |
| `bigram_shift` | a sentence | two neighbouring words have changed places |
| `sentence_order` | two sentences that follow each other | they have changed places |
| `same_document` | two sentences | they are from one document |

The first two have each sentence in both forms, with the same words: a model that knows no positions
gives both the same label, and is right on exactly one of them. `bigram_shift` is that of Conneau et
al. 2018 ("What you can cram into a single vector"); `word_order` is easier, as all words move.
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
from bert_jax_lab.studies.runs import FinetuneRun, StudyPlan
from bert_jax_lab.studies.study import Study

# Tokens of a sentence: enough words to have an order, and few enough that two fit in a row of 64.
_SHORTEST, _LONGEST = 6, 28
_TRAINING_SHARE = 0.7
# Rows of a set, at most.
MOST_ROWS = 8192
_SEED = 20_177

Row = tuple[str, str, int]
# The sentences of a document, each a list of words; a space before a word stands in the word.
Document = list[list[str]]


def write_rows(plan: StudyPlan) -> None:
    """Writes the rows of the tasks that are made of the corpus, where they are not there yet.

    Raises UsageError for a corpus with too few held-out sentences.
    """
    rows = plan.workdir / "rows"
    rules = {run.task.rule for run in plan.runs if isinstance(run, FinetuneRun) and run.task.rule}
    missing = sorted(rule for rule in rules if not (rows / rule / "dev.tsv").exists())
    if not missing:
        return
    corpus = open_corpus(plan.corpus)
    training, scoring = _documents(corpus)
    for rule in missing:
        for split, documents in (("train", training), ("dev", scoring)):
            found = RULES[rule](documents, np.random.default_rng(_SEED))[:MOST_ROWS]
            if not found:
                raise UsageError(
                    f"corpus {plan.corpus} has too few held-out sentences for the rows of rule "
                    f"{rule}; prepare it with a larger `validation_fraction`"
                )
            path = rows / rule / f"{split}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = ("\t".join(map(str, row)) for row in [("a", "b", "label"), *found])
            write_whole(path, "\n".join(lines) + "\n")


def require_rules(study: Study) -> None:
    """Raises UsageError for a rule that does not exist."""
    for task in study.tasks:
        if task.rule and task.rule not in RULES:
            raise UsageError(
                f"task {task.name}: its rule is {task.rule!r}; choose one of {', '.join(RULES)}"
            )


def _documents(corpus: Corpus) -> tuple[list[Document], list[Document]]:
    """Returns the held-out documents for training and for scoring, in a drawn order."""
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
    """Returns the words of a sentence; none of one that is too short or too long."""
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
        spaces = [True] * len(words)  # its tokens do not say
    else:
        names = readable(tokenizer, [int(ids[i]) for i in first])
        spaces = [name.startswith("▁") for name in names]
        # Before a sentence there may be one or none; between words of its script there is, or not.
        spaces[0] = not scripts.is_spaceless(scripts.points(words[0][:1])).any()
    return [
        " " * has_space + word
        for word, has_space in zip(words, spaces, strict=True)
        if word and "\t" not in word
    ]


def _joined(words: list[str]) -> str:
    return "".join(words).strip()


def _usable(document: Document) -> list[list[str]]:
    return [words for words in document if words]


def word_order(documents: list[Document], draw: np.random.Generator) -> list[Row]:
    """Returns each sentence twice: as it is, and with its words in a drawn order."""
    rows: list[Row] = []
    for words in (words for document in documents for words in _usable(document)):
        if len(set(words)) < 3:
            continue
        moved = words
        while moved == words:
            moved = [words[i] for i in draw.permutation(len(words))]
        rows += [(_joined(words), "", 0), (_joined(moved), "", 1)]
    return rows


def bigram_shift(documents: list[Document], draw: np.random.Generator) -> list[Row]:
    """Returns each sentence twice: as it is, and with two neighbours in each other's place."""
    rows: list[Row] = []
    for words in (words for document in documents for words in _usable(document)):
        places = [i for i in range(len(words) - 1) if words[i] != words[i + 1]]
        if not places:
            continue
        place = places[int(draw.integers(len(places)))]
        moved = [*words]
        moved[place : place + 2] = words[place + 1], words[place]
        rows += [(_joined(words), "", 0), (_joined(moved), "", 1)]
    return rows


def sentence_order(documents: list[Document], draw: np.random.Generator) -> list[Row]:
    """Returns each two neighbouring sentences once in their order and once not."""
    rows: list[Row] = []
    for document in documents:
        for first, second in zip(document[:-1:2], document[1::2], strict=False):
            if first and second and first != second:
                a, b = _joined(first), _joined(second)
                rows += [(a, b, 0), (b, a, 1)]
    del draw
    return rows


def same_document(documents: list[Document], draw: np.random.Generator) -> list[Row]:
    """Returns pairs with a sentence of the same document, and as many with one of another."""
    kept = [found for document in documents if len(found := _usable(document)) >= 2]
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
# The rules whose rows have a second text.
PAIRS = ("sentence_order", "same_document")


def columns_of(rule: str) -> tuple[str, ...]:
    """Returns the columns of the texts in the files of a rule."""
    return ("a", "b") if rule in PAIRS else ("a",)


def files_of(folder: Path) -> tuple[Path, Path]:
    """Returns the files of the rows for training and for scoring."""
    return folder / "train.tsv", folder / "dev.tsv"
