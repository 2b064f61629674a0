"""Choose a corpus of so many words from text files: whole documents, by shares per source.

    python examples/babylm/corpus.py SOURCES --words 10000000 --output-dir runs/babylm/text

SOURCES is one of
  - a TOML file with a table for each source: `path` (any file that `bert-jax prepare` reads),
    `share` of the words, and `license`, for example examples/babylm/sources.toml;
  - a folder with the files of BabyLM, *.train and *.dev, which are read completely;
  - docs:, the Python documentation on this machine.

Writes train/NAME.txt and validation/NAME.txt, one paragraph per line and a blank line between
documents, and sources.json with the words, documents and license of each source. Words are counted
by white space, as `wc -w` counts them in a UTF-8 locale. Equal documents are taken once, so
`bert-jax prepare` drops none. The same seed chooses the same documents.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.data.matching.identity import identify
from bert_jax.data.sources.read import read_documents
from bert_jax.errors import BertJaxError

# The files of BabyLM have few blank lines. Lines are joined to documents of at least so many words.
_DOCUMENT_WORDS = 1000
_OFFICIAL = "licenses of BabyLM's sources: see its data card"


class Source:
    """The documents of one source in a random order; each is given out once."""

    def __init__(self, documents: Iterable[str], seen: set[bytes], draw: random.Random):
        self._left: list[tuple[int, str]] = []
        for text in documents:
            key = identify(text.encode()).words
            if text and key not in seen:
                seen.add(key)
                self._left.append((len(text.split()), text))
        self.words = sum(count for count, _ in self._left)
        draw.shuffle(self._left)

    def take(self, words: int) -> tuple[list[str], int]:
        """Returns documents with at most so many words in all, and their words: in order, all that
        still fit.
        """
        taken, left, total = [], [], 0
        for count, text in self._left:
            if total + count <= words:
                taken.append(text)
                total += count
            else:
                left.append((count, text))
        self._left = left
        return taken, total


def clean(paragraphs: Iterable[str]) -> str:
    """Returns a document with one paragraph per line and single spaces between words."""
    # A word joiner has no width; `wc` takes it for white space, and Python does not.
    lines = (" ".join(paragraph.replace("\u2060", "").split()) for paragraph in paragraphs)
    return "\n".join(line for line in lines if line)


def blocks(file: Path) -> Iterator[str]:
    """Yields the lines of one of BabyLM's files as documents."""
    lines: list[str] = []
    words = 0
    with file.open(encoding="utf-8") as stream:
        for line in stream:
            lines.append(line)
            words += len(line.split())
            if words >= _DOCUMENT_WORDS:
                yield clean(lines)
                lines, words = [], 0
    yield clean(lines)


def described(sources: str, texts: Path | None) -> dict[str, dict[str, Any]]:
    """Returns the tables of the sources by name."""
    if sources == "docs:":
        return {"docs": {"path": sources, "share": 1.0, "license": "as in the packages"}}
    if Path(sources).is_dir():
        files = sorted(Path(sources).glob("*.train"))
        return {f.stem: {"path": str(f), "license": _OFFICIAL} for f in files}
    found = tomllib.loads(Path(sources).read_text(encoding="utf-8"))
    for table in found.values():
        table["path"] = str((texts or Path(sources).parent) / table["path"])
    return found


def chosen(sources: dict[str, Source], shares: dict[str, float], words: int) -> dict[str, Any]:
    """Returns the documents and the words of each source, at most `words` in all. Words that one
    source lacks come from the next.
    """
    found, total, cumulative = {}, 0, 0.0
    for name, source in sources.items():
        cumulative += shares[name] / sum(shares.values())
        found[name] = source.take(round(words * cumulative) - total)
        total += found[name][1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", help="TOML file, folder of BabyLM's files, or docs:")
    parser.add_argument("--words", type=int, default=10_000_000, help="words of the training text")
    parser.add_argument("--validation-words", type=int, help="default: at most 100,000")
    parser.add_argument("--texts", type=Path, help="folder of the files (default: the TOML file's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, required=True, help="new folder")
    options = parser.parse_args()
    if options.output_dir.exists():
        parser.error(f"--output-dir {options.output_dir} exists")

    tables = described(options.sources, options.texts)
    if not tables:
        parser.error(f"{options.sources} has no *.train files")
    seen: set[bytes] = set()
    draw = random.Random(options.seed)
    held_out: dict[str, Source] = {}
    training: dict[str, Source] = {}
    for name, table in tables.items():
        path = Path(table["path"])
        if path.suffix == ".train":
            dev = path.with_suffix(".dev")
            if dev.exists():
                held_out[name] = Source(blocks(dev), seen, draw)
            training[name] = Source(blocks(path), seen, draw)
            table["share"] = training[name].words
        else:
            documents = read_documents([table["path"]])
            training[name] = Source(map(clean, documents), seen, draw)
    shares = {name: table["share"] for name, table in tables.items()}
    few = options.validation_words or min(options.words // 20, 100_000)
    # The validation text is chosen first: a small source may be used up.
    parts = {"validation": chosen(held_out or training, shares, few)}
    parts["train"] = chosen(training, shares, options.words)

    part = options.output_dir.with_name(f".{options.output_dir.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    for split, found in parts.items():
        (part / split).mkdir(parents=True)
        for name, (texts, count) in found.items():
            tables[name][split] = {"documents": len(texts), "words": count}
            if not texts:
                continue
            file = part / split / f"{name}.txt"
            file.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    total = sum(table["train"]["words"] for table in tables.values())
    manifest = {"words": total, "seed": options.seed, "sources": tables}
    (part / "sources.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    os.replace(part, options.output_dir)
    for name, table in tables.items():
        print(f"{name}: {table['train']['words']:,} words ({table['license']})")
    print(f"wrote {options.output_dir}: {total:,} words to train on")
    if total < 0.99 * options.words:
        print(f"warning: the sources have fewer than {options.words:,} words")


if __name__ == "__main__":
    try:
        main()
    except BertJaxError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
