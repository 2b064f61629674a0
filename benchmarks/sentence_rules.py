"""Counts the cases of pySBD's tests that come out exactly, by the rules of English and of each
language.

    git clone https://github.com/nipunsadvilkar/pySBD
    python benchmarks/sentence_rules.py pySBD/tests/lang

The cases are read from the files of the clone, which are parsed and never executed. A line of a
case's text is a paragraph, as it is for `prepare`.
"""

import ast
import sys
from pathlib import Path

from bert_jax.data.language.sentences import split_sentences

# The name of a file there, without `test_`, and the language's code. English is left out.
_FILES = {
    "amharic": "am", "arabic": "ar", "armenian": "hy", "bulgarian": "bg", "burmese": "my",
    "chinese": "zh", "danish": "da", "deutsch": "de", "dutch": "nl", "french": "fr", "greek": "el",
    "hindi": "hi", "italian": "it", "japanese": "ja", "kazakh": "kk", "marathi": "mr",
    "persian": "fa", "polish": "pl", "russian": "ru", "slovak": "sk", "spanish": "es",
    "urdu": "ur",
}  # fmt: skip


def cases(file: Path) -> list[tuple[str, list[str]]]:
    """Returns the texts of a test file, each with its sentences; those that pySBD itself expects to
    fail are no tuples there, and are left out.
    """
    found = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            rows = (entry for entry in node.value.elts if isinstance(entry, ast.Tuple))
            found += [ast.literal_eval(row) for row in rows]
    return [(text, [sentence.strip() for sentence in sentences]) for text, sentences in found]


def is_exact(text: str, sentences: list[str], language: str) -> bool:
    found = [s for line in text.split("\n") for s in split_sentences(line, language)]
    return found == sentences


def main(folder: Path) -> None:
    total = [0, 0, 0]
    for name, code in _FILES.items():
        rows = cases(folder / f"test_{name}.py")
        right = [sum(is_exact(*row, language) for row in rows) for language in ("en", code)]
        total = [a + b for a, b in zip(total, [len(rows), *right], strict=True)]
        print(f"{code}: {right[1]} of {len(rows)}, by the rules of English {right[0]}")
    print(f"all: {total[2]} of {total[0]}, by the rules of English {total[1]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
