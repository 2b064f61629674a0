"""More text for a corpus that is there: new shards after the old ones, whose files stay.

A document's side depends on its words and the seed alone, and the corpus keeps what its documents
are known by. So the same documents come to lie on the same sides, and the same duplicates are
dropped, as in a corpus that is made of all sources in one go.
"""

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bert_jax.data.corpus import digests
from bert_jax.data.corpus.output import as_named, only_writer, require_named, require_outside
from bert_jax.data.corpus.prepare import write
from bert_jax.data.corpus.request import KINDS, Request
from bert_jax.data.corpus.store import SPLITS, Corpus, open_corpus, read_manifest
from bert_jax.data.language import codes
from bert_jax.data.sources.stream import SourceOptions, require_encoding
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.files import local
from bert_jax.progress import note

# Options by which documents are compared that are not equal.
_COMPARED = ("near_duplicates", "decontaminate")


def append(
    sources: Sequence[str | Path],
    output: Path | str,
    *,
    text_field: str | None = None,
    encoding: str | None = None,
    quoting: str | None = None,
    skip_bad: str | bool | None = None,
    skip_bad_limit: float = 0.01,
    workers: int | None = None,
    **made_with: Any,
) -> Corpus:
    """Adds the documents of `sources` to the corpus that is in `output`, and returns it.

    What it has already is dropped; its tokenizer, seed and share to hold out are used. Options are
    those of `prepare`; `made_with` are those that the corpus was made with: what is left out is as
    it was, and what is given must be. `text_field`, `encoding` and `quoting` may differ for these
    sources.
    The manifest is written last: before that, the corpus is what it was, and the same call goes on.

    Raises as `prepare` does, UsageError where `output` is no corpus or was made with other options,
    and DataDamaged where it is damaged.
    """
    sources, output = as_named(sources, "source"), local(output)
    require_named(source=sources)
    if workers is not None and workers < 1:
        raise UsageError(f"`workers` {workers} is less than 1")
    require_encoding(encoding)
    require_outside(sources, output)
    read_manifest(output)  # before a lock is made there
    with only_writer(output):
        # All of it: its tokens are counted with the new ones, and its checksums are kept.
        corpus = open_corpus(output, verify=SPLITS)
        if dropped := [n for n in _COMPARED if n in corpus.manifest["options"]]:
            names = " and ".join(f"`{name}`" for name in dropped)
            raise UsageError(
                f"{output} was made with {names}, and keeps no text that new text could be "
                "compared with: prepare all sources together, with another `output`"
            )
        if differences := [*_differences(corpus, made_with)]:
            names = " and ".join(f"`{name}`" for name, _ in differences)
            listed = "; ".join(said for _, said in differences)
            raise UsageError(
                f"{output} {listed}: leave {names} out, or prepare all sources together, with "
                "another `output`"
            )
        cut_by, here = corpus.manifest["versions"]["sentencex"], version("sentencex")
        if cut_by != here:
            note(
                f"{output} was cut into sentences by sentencex {cut_by}, new text is by {here}; "
                f"`pip install sentencex=={cut_by}` cuts it alike"
            )
        tokenizer = load_tokenizer(output / "tokenizer")
        known, options = digests.read(corpus), corpus.manifest["options"]
        request = Request(
            sources=tuple(sources),
            tokenizer=str(output / "tokenizer"),
            vocab_size=corpus.vocab_size,
            lowercase=False,
            # What has a held-out side of its own draws none.
            validation_fraction=options["validation_fraction"] or 0.0,
            seed=options["seed"],
            reading=SourceOptions(
                text_field=text_field or options.get("text_field", SourceOptions.text_field),
                encoding=encoding or options.get("encoding"),
                quoting=quoting or options.get("quoting"),
                document=options.get("document", SourceOptions.document),
                paragraph=options.get("paragraph", SourceOptions.paragraph),
                skips_records=skip_bad == "record",
                outside=output,
            ),
            skip_bad="file" if skip_bad is True else skip_bad or None,
            skip_bad_limit=skip_bad_limit,
            held_out=(),
            language=options.get("language"),
            strip_accents=None,
            by_character=tokenizer.kind == "characters",
            known=known,
        )
        return write(request, output, tokenizer, workers, before=corpus)


def _differences(corpus: Corpus, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the options that are given and are not those of the corpus, with what to say."""
    options, tokenizer = corpus.manifest["options"], corpus.manifest["tokenizer"]
    uncased_wordpiece = tokenizer["kind"] == "wordpiece" and tokenizer["lowercase"]
    theirs = {
        "language": options.get("language", codes.DEFAULT),
        "document": options.get("document", SourceOptions.document),
        "paragraph": options.get("paragraph", SourceOptions.paragraph),
        "validation_fraction": options["validation_fraction"],
        "seed": options["seed"],
        "tokenizer": options["tokenizer"],
        "vocab_size": options["vocab_size"] or tokenizer["vocab_size"],
        "lowercase": tokenizer["lowercase"],
        "strip_accents": tokenizer.get("strip_accents", uncased_wordpiece),
    }
    for name, value in given.items():
        if name in (*_COMPARED, "show_dropped"):
            if value:
                yield name, f"was made without `{name}`"
            continue
        if name == "validation_sources":
            if value:
                yield (
                    "validation_source",
                    "has its held-out side already, to which `validation_source` cannot add",
                )
            continue
        if name not in theirs:
            raise TypeError(f"append() has no option {name!r}")
        if value is None:
            continue
        if name == "language":
            value = codes.canonical(value)
        if name == "tokenizer" and value not in KINDS:
            if load_tokenizer(value).hash != tokenizer["hash"]:
                yield name, f"was made with another `tokenizer` than {value}"
        elif value != theirs[name]:
            yield name, f"was made with `{name}` {_said(theirs[name])}, not {_said(value)}"


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "of a side of its own" if value is None else str(value)
