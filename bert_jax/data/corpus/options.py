"""The options of a corpus, for `bert-jax prepare`, `prepare()` and corpus.json."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.data.language import codes
from bert_jax.data.sources.stream import HELD_OUT, SourceOptions, require_encoding, require_layout
from bert_jax.errors import UsageError, did_you_mean, some

# The tokenizers that can be trained, and those that keep case unless `lowercase` is set.
KINDS = ("wordpiece", "sentencepiece", "bpe", "characters")
_CASED = ("bpe", "characters")
VOCAB_SIZE = 30522  # BERT's
_ACCENTS = {"auto": None, "yes": True, "no": False}


@section
class CorpusOptions:
    """The choices that decide the content of a corpus, each with its help text."""

    source: tuple[str, ...] = setting(
        REQUIRED,
        "SRC: a file, folder or glob of .txt (see --document and --paragraph), .jsonl, .csv, "
        ".tsv, .parquet or .arrow (see --text-field), .warc or .wet, .fasta, .fa, .faa or .fna,"
        " also as .gz, .bz2, .xz or .zst; the same at an address, such as gs://, s3:// or "
        "https:// ([addresses](data.md#addresses)); hf:NAME is a data set of the hub; - is text"
        " on standard input, stdin:.jsonl another kind there; `tfds:NAME[/CONFIG][:SPLIT]`; or "
        "docs: (the Python documentation found on this machine) ([sources](data.md#sources)). "
        "Repeat for several",
    )
    text_field: str = setting(
        SourceOptions.text_field,
        "NAME: the field or column of a record that holds its text; of several, as "
        "text,content,doc.text, the first that a record has; a dot selects a field of an object"
        " or struct ([fields](data.md#fields))",
    )
    document: Literal["blank", "line", "file"] = setting(
        "blank",
        "a document of plain text ends at a blank line, with each line, or with the file "
        "([layouts](data.md#layouts))",
    )
    paragraph: Literal["line", "blank"] = setting(
        "line",
        "a paragraph is a line, or the lines between two blank lines, joined: for wrapped text",
    )
    encoding: str | None = setting(
        None, "NAME: encoding of text without a byte order mark, such as cp1252 (default: UTF-8)"
    )
    quoting: Literal["double", "none"] | None = setting(
        None,
        "cells of tables that hold a delimiter are in double quotes, or quotes are ordinary "
        "characters (default: none for .tsv files, double for .csv files)",
    )
    skip_bad: bool = setting(
        False,
        "leave out the records, and the files, that cannot be read, and report how many "
        "(default: stop, and list all files)",
    )
    skip_bad_limit: float = setting(0.01, "X: largest share of records that --skip-bad leaves out")
    tokenizer: str = setting(
        "wordpiece",
        "KIND|PATH: train 'wordpiece', 'sentencepiece', 'bpe' (byte-level, as RoBERTa's) or "
        "'characters' ([one token per character](characters.md): DNA, proteins, SMILES), or "
        "load a vocab.txt, tokenizer.json, vocab.json with merges.txt, .model file or tokenizer"
        " directory",
    )
    vocab_size: int | None = setting(
        None, "N: tokens to train, or the most characters (default: 30522)"
    )
    lowercase: bool | None = setting(
        None,
        "lower-case the text (default: yes when training wordpiece or sentencepiece, no for bpe"
        " and characters; as the vocabulary is when loading)",
    )
    strip_accents: Literal["auto", "yes", "no"] = setting(
        "auto",
        "strip accents and other [marks](data.md#marks) from letters; auto strips them when "
        "training wordpiece that lower-cases, unless more than 1 % of the words would lose one;"
        " a vocabulary that is loaded keeps its setting",
    )
    language: str | None = setting(
        None,
        "CODE: the language whose rules [split sentences](data.md#sentences), such as de or ja "
        "(default: en, with a note where the text looks like another language)",
    )
    validation_fraction: float = setting(0.01, "X: share of documents held out")
    validation_source: tuple[str, ...] = setting(
        (),
        "SRC: hold out the text of this source, as --source, and draw nothing; documents that "
        "it shares with the training text are dropped there ([validation "
        "sources](data.md#validation-sources)). Repeat for several",
    )
    known: tuple[str, ...] = setting(
        (),
        "CORPUS: leave out documents that this corpus has, in either split ([more "
        "text](data.md#more-text-for-a-corpus)). Repeat for several",
    )
    near_duplicates: float | None = setting(
        None,
        "X: also drop a document that shares this fraction of its runs of five words with an "
        "earlier one, such as 0.8 ([near duplicates](data.md#near-duplicates)) (default: only "
        "equal documents are dropped)",
    )
    decontaminate: tuple[str, ...] = setting(
        (),
        "SRC: drop documents that have 13 words in a row of this test set, read as --source, "
        "each line of plain text a record ([test sets](data.md#test-sets-in-the-text)). Repeat "
        "for several",
    )
    seed: int = setting(
        0, "N: seed of the split and of the sample that the tokenizer is trained on"
    )

    def __post_init__(self) -> None:
        """Raises UsageError for invalid options and invalid combinations."""
        for field in ("source", "validation_source", "known", "decontaminate"):
            object.__setattr__(self, field, _places(getattr(self, field), field))
        object.__setattr__(self, "tokenizer", str(self.tokenizer))
        if self.language is not None:
            object.__setattr__(self, "language", codes.canonical(self.language))
        if not self.source:
            raise UsageError("no `source` given")
        if not 0 < self.validation_fraction < 1:
            raise UsageError(
                f"`validation_fraction` {self.validation_fraction} must be between 0 and 1"
            )
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"`seed` {self.seed} must be between 0 and 2**64 - 1")
        if self.vocab_size is not None and self.vocab_size < 10:
            raise UsageError(f"`vocab_size` {self.vocab_size} must exceed the 5 special tokens")
        if self.strip_accents not in _ACCENTS:
            raise UsageError(f"`strip_accents` {self.strip_accents!r} must be auto, yes or no")
        require_encoding(self.encoding)
        require_layout(self.document, self.paragraph, self.quoting)
        if self.tokenizer == "bpe" and self.lowercase:
            raise UsageError("`lowercase` does not apply to `tokenizer` bpe, which keeps case")
        if self.tokenizer in _CASED and self.strip_accents == "yes":
            raise UsageError(f"`strip_accents` yes does not apply to `tokenizer` {self.tokenizer}")
        hint = did_you_mean(self.tokenizer, KINDS, cutoff=0.7)
        if hint and not self.trains and not Path(self.tokenizer).exists():
            raise UsageError(f"`tokenizer` {self.tokenizer} is neither a kind nor a file.{hint}")

    @property
    def trains(self) -> bool:
        """Returns whether a tokenizer is trained."""
        return self.tokenizer in KINDS

    @property
    def folds_case(self) -> bool:
        """Returns whether a trained tokenizer lower-cases."""
        return self.tokenizer not in _CASED if self.lowercase is None else self.lowercase

    @property
    def strips_accents(self) -> bool | None:
        """Returns whether accents are stripped; None if the text decides."""
        return _ACCENTS[self.strip_accents]

    @property
    def rules(self) -> str:
        """Returns the language that determines how sentences are split."""
        return self.language or codes.DEFAULT

    def reading(self, *, outside: Path | None, stdin: Path | None = None) -> SourceOptions:
        """Returns how to read sources: without the files below `outside`, and with the copy of
        standard input in `stdin`.
        """
        return SourceOptions(
            text_field=self.text_field,
            encoding=self.encoding,
            quoting=self.quoting,
            document=self.document,
            paragraph=self.paragraph,
            skips_records=self.skip_bad,
            outside=outside,
            stdin=stdin,
        )

    def of_sources(self, reading: SourceOptions) -> list[tuple[tuple[str, ...], SourceOptions]]:
        """Returns the sources and their options, those of the validation split first."""
        held_out = dataclasses.replace(reading, splits=HELD_OUT)
        return [(self.validation_source, held_out), (self.source, reading)]

    def described(self, *, tests: str | None, known: Sequence[str]) -> dict[str, Any]:
        """Returns the options as corpus.json keeps them.

        `tests` is the hash of the test sets, `known` the fingerprints of the known corpora: the
        content counts, not the path. The manifest stores sources and a given tokenizer separately.
        """
        options = dataclasses.asdict(self) | {"decontaminate": tests, "known": sorted(known)}
        del options["source"], options["validation_source"]
        if self.validation_source:
            options["validation_fraction"] = None
        if self.trains:
            options |= {"vocab_size": self.vocab_size or VOCAB_SIZE, "lowercase": self.folds_case}
        else:
            options |= {"tokenizer": "given", "vocab_size": None, "lowercase": None}
            options["strip_accents"] = None
        return options

    def differences(
        self, manifest: Mapping[str, Any], options: Mapping[str, Any], given: str | None
    ) -> list[str]:
        """Returns the differences between a finished corpus and these options; texts are not
        compared.

        `options` are as `described` returns them, `given` is the hash of a given tokenizer.
        """
        theirs, ours = manifest["options"], json.loads(json.dumps(options))
        found = [
            f"its {name} is {theirs.get(name)!r}, not {ours.get(name)!r}"
            for name in {**ours, **theirs}
            if theirs.get(name) != ours.get(name)
        ]
        for name, its, asked in (
            ("source", manifest["sources"], self.source),
            ("validation source", manifest["validation_sources"], self.validation_source),
        ):
            if [*its] != [*asked]:
                listed = [some(map(str, names), 3) or "none" for names in (its, asked)]
                found.append(f"its {name} is {listed[0]}, not {listed[1]}")
        if given not in (None, manifest["tokenizer"]["hash"]):
            found.append("its tokenizer is another one")
        return found


def _places(places: Any, name: str) -> tuple[str, ...]:
    """Returns places as strings. Raises UsageError for a string instead of a list, and for an empty
    name.
    """
    if isinstance(places, str | Path):
        raise UsageError(f"`{name}` is a single string, {places}; make it a list")
    found = tuple(str(place) for place in places)
    if not all(place.strip() for place in found):
        raise UsageError(f"`{name}` is empty: check that the shell variable is set")
    return found
