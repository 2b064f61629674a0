"""The request to `prepare`: all that decides the content of a corpus."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.corpus.dedup import Survey
from bert_jax.data.corpus.survey import Looked, Unit, units_of
from bert_jax.data.language import codes
from bert_jax.data.matching.contamination import Contamination
from bert_jax.data.sources.stream import HELD_OUT, SourceOptions
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import some

# The kinds of tokenizers that can be trained.
KINDS = ("wordpiece", "sentencepiece", "bpe", "characters")
# Those that keep the case unless they are asked to fold it.
CASED = ("bpe", "characters")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The choices that decide the content of the corpus."""

    sources: tuple[str, ...]
    tokenizer: str
    vocab_size: int
    lowercase: bool
    validation_fraction: float
    seed: int
    reading: SourceOptions
    skip_bad: str | None
    skip_bad_limit: float
    held_out: tuple[str, ...]
    language: str | None
    strip_accents: bool | None
    # One token per character: documents are compared exactly.
    by_character: bool = False
    near_duplicates: float | None = None
    contamination: Contamination | None = field(default=None, compare=False)
    shows_dropped: bool = field(default=False, compare=False)
    # The documents of the corpus that is added to (`Survey.digests`).
    known: np.ndarray | None = field(default=None, compare=False)

    @property
    def trains(self) -> bool:
        return self.tokenizer in KINDS

    @property
    def tests(self) -> tuple[str, ...]:
        """Returns the test sets whose text is dropped."""
        return () if self.contamination is None else self.contamination.sources

    @property
    def rules(self) -> str:
        """Returns the language by whose rules sentences are cut."""
        return self.language or codes.DEFAULT

    @property
    def options(self) -> dict[str, Any]:
        """Returns the options as the manifest keeps them; what a given tokenizer is, its hash
        says.
        """
        options = {
            "tokenizer": self.tokenizer if self.trains else "given",
            "vocab_size": self.vocab_size if self.trains else None,
            "lowercase": self.lowercase if self.trains else None,
            "validation_fraction": None if self.held_out else self.validation_fraction,
            "seed": self.seed,
        }
        # Where they are the usual ones, the manifest does not name them.
        for name in ("text_field", "encoding", "quoting", "document", "paragraph"):
            if (value := getattr(self.reading, name)) != getattr(SourceOptions, name):
                options[name] = value
        if self.rules != codes.DEFAULT:
            options["language"] = self.rules
        if self.strip_accents is not None and self.trains:
            options["strip_accents"] = self.strip_accents
        if self.near_duplicates is not None:
            options["near_duplicates"] = self.near_duplicates
        if self.contamination is not None:
            options["decontaminate"] = self.contamination.hash
        return options

    def survey(self, budget: int) -> Survey:
        """Returns what decides of the documents; the sample has a `budget` of bytes."""
        return Survey(
            self.sources,
            validation_fraction=self.validation_fraction,
            held_out=self.held_out,
            known=self.known,
            budget=budget,
        )

    def looked(self, folder: Path, budget: int) -> Looked:
        """Returns how the sources are looked through; texts are written to `folder`."""
        return Looked(
            fraction=self.validation_fraction,
            salt=self.seed.to_bytes(8, "little"),
            folder=folder,
            budget=budget,
            draws=not self.held_out,
            skips_files=self.skip_bad == "file",
            near_duplicates=self.near_duplicates,
            contamination=self.contamination,
            is_exact=self.by_character,
        )

    def units(self, reading: SourceOptions) -> list[Unit]:
        """Returns the units of all sources, those that are held out first."""
        held_out = dataclasses.replace(reading, splits=HELD_OUT)
        return units_of([(self.held_out, held_out), (self.sources, reading)])


def differences_of(
    manifest: Mapping[str, Any], request: Request, given: Tokenizer | None
) -> list[str]:
    """Returns how a finished corpus differs from the requested corpus; its text is not compared."""
    theirs, ours = manifest["options"], json.loads(json.dumps(request.options))
    differences = [
        f"its {name} is {theirs.get(name)!r}, not {ours.get(name)!r}"
        for name in {**ours, **theirs}
        if theirs.get(name) != ours.get(name)
    ]
    added = sum(len(each["sources"]) for each in manifest.get("appended", ()))
    sources = manifest["sources"][: len(manifest["sources"]) - added]
    for name, its, asked in (
        ("source", sources, request.sources),
        ("validation source", manifest.get("validation_sources", []), request.held_out),
    ):
        if [*its] != [*asked]:
            said = [some(map(str, names), 3) or "none" for names in (its, asked)]
            differences.append(f"its {name} is {said[0]}, not {said[1]}")
    if given is not None and given.hash != manifest["tokenizer"]["hash"]:
        differences.append("its tokenizer is another one")
    return differences


def finished(manifest: Mapping[str, Any]) -> str:
    """Returns a note on a finished corpus, and on how often it has been added to."""
    times = len(manifest.get("appended", ()))
    more = f", and has been added to {times} time{'s' * (times > 1)} since" if times else ""
    return f"is finished already{more}"
