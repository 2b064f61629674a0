"""The first reading of the sources: what is wrong with them is found before anything is made."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.data.corpus.dedup import SourceDocument, Survey, sample
from bert_jax.data.corpus.request import Request
from bert_jax.data.matching.contamination import FEWEST, Contamination
from bert_jax.data.matching.near_duplicates import NearDuplicates
from bert_jax.data.sources.read import is_stdin
from bert_jax.data.sources.stream import SourceOptions
from bert_jax.errors import UsageError
from bert_jax.progress import Progress, note

# Bad files that are listed; of more, how many they are.
_LISTED = 100
# Documents that are shown of those that were dropped for one reason.
_EXAMPLES = 10
# Text that says which language and which script it is in.
LOOKED_AT_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The findings of the first reading."""

    survey: Survey  # of all documents, those of bad files left out
    reading: SourceOptions  # without the bad files
    bad: dict[str, str]  # the files that were left out, and why
    bad_records: dict[str, int]  # how many of each file were left out
    sample: list[SourceDocument]
    text_bytes: int  # of all documents, in UTF-8

    @property
    def beginning(self) -> str:
        """Returns the first megabyte or so of the sample."""
        size, texts = 0, []
        for document in self.sample:
            texts.append(document.text.decode())
            size += len(document.text)
            if size >= LOOKED_AT_BYTES:
                break
        return "\n".join(texts)


def preview(request: Request, stdin: Path, title: str, *, sample_bytes: int = 0) -> Preview:
    """Reads all sources to their end, and takes a sample of `sample_bytes` of training text.

    Standard input is kept as the file `stdin`. Raises UsageError that lists all files that cannot
    be read. With `skip_bad` "file" they are left out: what they hold before the place that cannot
    be read, too, so that it is read once more. With "record" the bad records are, unless more than
    the share `skip_bad_limit` of all is bad.
    """
    kept = keep_standard_input(request.sources, stdin)
    reading = dataclasses.replace(request.reading, stdin=kept)
    bad: dict[str, str] = {}
    while True:
        survey = request.survey(reading)
        alike = request.near_duplicates
        near = None if alike is None else NearDuplicates(alike)
        with Progress(title, total=None) as progress:
            progress.describe = lambda progress=progress: f"{progress.done:,} documents"
            read = [0]
            chosen = sample(_counted(survey, progress, read, near), budget=sample_bytes)
        found = survey.findings
        if not found.files:
            break
        if request.skip_bad != "file":
            raise _refusal(survey)
        bad |= {name: str(error) for name, error in found.files.items()}
        note(_listed(found.files, "left out, since they cannot be read"))
        reading = dataclasses.replace(reading, without=frozenset(bad))
    _note_bad_records(survey, request.skip_bad_limit)
    _note_wrapped(found.wrapped)
    if request.contamination is not None:
        _note_contamination(request.contamination, survey, shows=request.shows_dropped)
    if near is not None:
        dropped = _drop_near_duplicates(near, request, survey, reading)
        chosen = [document for document in chosen if document.number not in dropped]
    return Preview(
        survey=survey,
        reading=reading,
        bad=bad,
        bad_records=dict(found.records),
        sample=chosen,
        text_bytes=read[0],
    )


def _note_bad_records(survey: Survey, limit: float) -> None:
    """Notes the records that were left out. Raises UsageError where they are too many."""
    found = survey.findings
    bad = sum(found.records.values())
    if not bad:
        return
    total = bad + len(survey.decisions) + found.without_text
    files = [
        f"  {count:,} in {name}; the first: {found.first_bad[name]}"
        for name, count in found.records.most_common(_LISTED)
    ]
    listed = "\n".join(files)
    if bad > limit * total:
        raise UsageError(
            f"{bad:,} of {total:,} records cannot be read, more than the share "
            f"`skip_bad_limit` {limit:g}:\n{listed}"
        )
    note(f"left out {bad:,} of {total:,} records, which cannot be read:\n{listed}")


def _note_wrapped(wrapped: dict[str, float]) -> None:
    if wrapped:
        name, share = max(wrapped.items(), key=lambda item: item[1])
        others = f" and {len(wrapped) - 1:,} other files" if len(wrapped) > 1 else ""
        note(
            f"{name}{others}: {share:.0%} of the lines end in mid-sentence, as in wrapped text: "
            "`paragraph` blank joins the lines between blank ones, and `document` file makes each "
            "file one document"
        )


def _counted(
    survey: Survey, progress: Progress, read: list[int], near: NearDuplicates | None
) -> Iterator[SourceDocument]:
    """Yields all documents, of which `near` hears; `read` counts their bytes."""
    for document in survey.read():
        progress.advance()
        read[0] += len(document.text)
        if near is not None:
            near.add(document.number, document.text)
        yield document


def _drop_near_duplicates(
    near: NearDuplicates, request: Request, survey: Survey, reading: SourceOptions
) -> set[int]:
    """Returns the numbers of the documents that are dropped, by a reading of all of them."""
    total = len(survey.decisions)
    again = request.survey(reading, decided=survey.decisions)
    with Progress("near duplicates", total=total) as progress:
        progress.describe = lambda: f"{progress.done:,} documents"

        def documents() -> Iterator[tuple[int, bytes]]:
            for document in again.read():
                progress.advance(document.number + 1 - progress.done)
                yield document.number, document.text

        found = list(near.find(documents()))
        progress.advance(total - progress.done)
    dropped = {each.number for each in found}
    survey.drop_near_duplicates(dropped)
    for each in found[:_EXAMPLES] if request.shows_dropped else ():
        note(f"near duplicate ({each.similarity:.2f}): {each.text!r} of {each.other!r}")
    return dropped


def _note_contamination(contamination: Contamination, survey: Survey, *, shows: bool) -> None:
    for source, counts in contamination.counts(survey.found_records).items():
        short = counts["records"] - counts["looked_for"]
        aside = f" ({short:,} of fewer than {FEWEST} words are not looked for)" if short else ""
        note(
            f"{source}: {counts['found']:,} of {counts['records']:,} records are in the text{aside}"
        )
    for text, records in survey.found_in[:_EXAMPLES] if shows else ():
        note(f"text of {contamination.source_of[min(records)]}: {text!r}")


def _refusal(survey: Survey) -> UsageError:
    bad = survey.findings.files
    (first, *others) = bad.values()
    if others:
        listed = _listed(bad, "cannot be read")
        return UsageError(f"{listed}\nfix them, or leave them out with `skip_bad`")
    rest = "; `skip_bad` leaves the file out" if any(survey.documents.values()) else ""
    return UsageError(f"{first}{rest}")


def _listed(bad: dict[str, UsageError], what: str) -> str:
    lines = [f"  {error}" for error in [*bad.values()][:_LISTED]]
    more = [f"  and {len(bad) - _LISTED:,} more"] if len(bad) > _LISTED else []
    return "\n".join([f"{len(bad):,} file{'s' * (len(bad) > 1)} {what}:", *lines, *more])


def keep_standard_input(sources: Sequence[str], file: Path) -> Path | None:
    """Copies standard input to a file, to be read more than once, if it is one of the sources."""
    found = [source for source in sources if is_stdin(source)]
    if not found:
        return None
    if len(found) > 1:
        raise UsageError(f"`source` {' and '.join(found)}: standard input can be read once")
    if sys.stdin is None:
        raise UsageError(f"`source` {found[0]}: standard input is closed")
    if sys.stdin.isatty():
        note("reading standard input; Ctrl-D ends it")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as copy, Progress("standard input", total=None) as progress:
        progress.describe = lambda: f"{progress.done / 1e6:,.0f} MB"
        while data := sys.stdin.buffer.read(1 << 20):
            copy.write(data)
            progress.advance(len(data))
    return file
