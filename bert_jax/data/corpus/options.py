"""The options of a corpus, for `bert-jax prepare`, `prepare()` and corpus.json."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.data.language import codes
from bert_jax.data.sources.stream import HELD_OUT, SourceOptions
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
        "SRC: a file, folder or glob of .txt (see --document-boundary), .jsonl, .csv, .tsv, "
        ".parquet or .arrow (see --text-column), .warc, .wet or FASTA files, also as .gz, .bz2, "
        ".xz or .zst; an address such as gs://, s3:// or https://; hf:OWNER/NAME for a dataset of "
        "the Hugging Face hub; `tfds:NAME[/CONFIG][:SPLIT]`; or docs: for the Python documentation "
        "on this machine. Repeat for several",
    )
    text_column: str = setting(
        SourceOptions.text_field,
        "NAME: the column or field of a record that holds its text. With several names, for "
        "example text,content,doc.text, the first name that a record has is used; a dot selects a "
        "field of an object or struct",
    )
    document_boundary: Literal["blank", "line", "file"] = setting(
        "blank", "end of a document of plain text: a blank line, the end of a line, or of a file"
    )
    paragraph_boundary: Literal["line", "blank"] = setting(
        "line",
        "end of a paragraph of plain text: the end of a line, or a blank line, which joins wrapped "
        "lines",
    )
    encoding: str | None = setting(
        None,
        "NAME: encoding of files without a byte order mark, for example cp1252 (default: UTF-8)",
    )
    quoting: Literal["double", "none"] | None = setting(
        None,
        "double: cells of tables that contain a delimiter are in double quotes; none: quotes are "
        "ordinary characters (default: none for .tsv files, double for .csv files)",
    )
    on_bad_record: Literal["stop", "skip"] = setting(
        "stop",
        "what to do with records and files that cannot be read: stop and list them, or skip and "
        "count them",
    )
    bad_record_limit: float = setting(0.01, "X: largest share of records that may be skipped")
    tokenizer: str = setting(
        "wordpiece",
        "KIND|PATH: train 'wordpiece', 'sentencepiece', 'bpe' (byte-level, as in RoBERTa) or "
        "'characters' (one token per character: DNA, proteins, SMILES), or load a vocab.txt, "
        "tokenizer.json, vocab.json with merges.txt, .model file or tokenizer directory",
    )
    vocab_size: int | None = setting(None, "N: size of the vocabulary to train (default: 30522)")
    lowercase: bool | None = setting(
        None,
        "lower-case the text (default: yes for a trained wordpiece or sentencepiece, no for bpe "
        "and characters, the setting of a loaded vocabulary)",
    )
    strip_accents: Literal["auto", "yes", "no"] = setting(
        "auto",
        "strip accents and other marks from letters, with wordpiece. auto strips them for a "
        "trained wordpiece that lower-cases, unless more than 1 % of the words would lose one; a "
        "loaded vocabulary keeps its setting",
    )
    language: str | None = setting(
        None,
        "CODE: language of the rules that split sentences, for example de or ja (default: en, with "
        "a note if the text looks like another language)",
    )
    validation_fraction: float = setting(0.01, "X: share of documents in the validation split")
    validation_source: tuple[str, ...] = setting(
        (),
        "SRC: use this source, read as --source, as the validation split, in place of a random "
        "share; training documents that are also in it are dropped. Repeat for several",
    )
    known: tuple[str, ...] = setting(
        (),
        "CORPUS: leave out documents that this existing corpus has in either split. Repeat for "
        "several",
    )
    dedup_threshold: float | None = setting(
        None,
        "X: drop near-duplicates: documents with a Jaccard similarity of at least X, in 5-grams of "
        "words, to an earlier document, for example 0.8 (default: drop exact duplicates only)",
    )
    decontaminate: tuple[str, ...] = setting(
        (),
        "SRC: drop documents that share 13 consecutive words with this test set, read as --source "
        "with one record per line of plain text. Repeat for several",
    )
    seed: int = setting(
        0, "N: seed of the validation split and of the sample for tokenizer training"
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
        self.reading(outside=None)  # checks the options of sources
        if self.tokenizer == "bpe" and self.lowercase:
            raise UsageError("`lowercase` does not apply to `tokenizer` bpe, which keeps case")
        if self.strip_accents == "yes" and self.tokenizer in KINDS[1:]:
            raise UsageError(f"`strip_accents` yes does not apply to `tokenizer` {self.tokenizer}")
        hint = did_you_mean(self.tokenizer, KINDS, cutoff=0.7)
        if hint and not self.trains and not Path(self.tokenizer).exists():
            raise UsageError(f"`tokenizer` {self.tokenizer} is neither a kind nor a file.{hint}")

    @property
    def trains(self) -> bool:
        """Returns whether a tokenizer is trained."""
        return self.tokenizer in KINDS

    @property
    def skips_bad_records(self) -> bool:
        """Returns whether records and files that cannot be read are left out."""
        return self.on_bad_record == "skip"

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

    def reading(self, *, outside: Path | None) -> SourceOptions:
        """Returns how to read sources: without the files below `outside`."""
        return SourceOptions(
            text_field=self.text_column,
            encoding=self.encoding,
            quoting=self.quoting,
            document=self.document_boundary,
            paragraph=self.paragraph_boundary,
            skips_records=self.skips_bad_records,
            outside=outside,
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
