"""The first reading of the sources: what is wrong with them is found before anything is made."""

import bisect
import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.data.corpus.dedup import Survey, Totals
from bert_jax.data.corpus.output import STDIN
from bert_jax.data.corpus.pool import Pool
from bert_jax.data.corpus.request import Request
from bert_jax.data.corpus.survey import Unit, gather, look_through
from bert_jax.data.matching.contamination import FEWEST, Contamination
from bert_jax.data.matching.near_duplicates import NearDuplicates
from bert_jax.data.sources.read import is_stdin
from bert_jax.data.sources.stream import OF_WINDOWS
from bert_jax.errors import UsageError
from bert_jax.progress import Progress, note

# Bad files that are listed; of more, how many they are.
_LISTED = 100
# The remedy of one that is not UTF-8 beside others that are.
_BY_ITSELF = (
    "`skip_bad` leaves it out; if Windows wrote it in a western language, a second command adds "
    "it: `append` `source` FILE `encoding` cp1252"
)
# What the reasons of files that are not UTF-8 differ in.
_BYTE = re.compile(r" \(byte 0x[0-9a-f]{2} at offset [0-9]+\)")
# Documents that are shown of those that were dropped for one reason.
_EXAMPLES = 10
# Text that says which language and which script it is in.
LOOKED_AT_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The findings of the first reading."""

    survey: Survey  # of all documents, those of bad files left out
    units: list[Unit]  # without the bad files
    bad: dict[str, str]  # the files that were left out, and why
    sample: list[bytes]

    @property
    def beginning(self) -> str:
        return beginning(self.sample)


def beginning(sample: Iterable[bytes]) -> str:
    """Returns the first megabyte or so of a sample."""
    size, texts = 0, []
    for text in sample:
        texts.append(text.decode())
        size += len(text)
        if size >= LOOKED_AT_BYTES:
            break
    return "\n".join(texts)


def preview(
    request: Request, folder: Path, title: str, *, workers: int, sample_bytes: int = 0
) -> Preview:
    """Reads all sources to their end, and takes a sample of `sample_bytes` of training text.

    In `folder`, which is there, standard input and texts are kept. Raises UsageError that lists all
    files that cannot be read. With `skip_bad` "file" they are left out, and what they hold before
    the place that cannot be read, too. With "record" the bad records are, unless more than the
    share `skip_bad_limit` of all is bad.
    """
    kept = keep_standard_input(request.sources, folder / STDIN)
    units = request.units(dataclasses.replace(request.reading, stdin=kept))
    looked = request.looked(folder, sample_bytes)
    survey = request.survey(sample_bytes)
    alike = request.near_duplicates
    near = None if alike is None else NearDuplicates(alike)
    with Pool(max(1, min(workers, len(units))), looked) as pool:
        with Progress(title, total=None) as progress:
            progress.describe = lambda: f"{progress.done:,} documents"
            for unit, found in zip(
                units,
                pool.map(
                    look_through,
                    ((unit, survey.sample.highest) for unit in units),
                    is_here=lambda job: job[0].is_here,
                    look=lambda: progress.advance(pool.counts[0] - progress.done),
                ),
                strict=True,
            ):
                chosen = survey.take(unit, found)
                if near is not None and found.keys is not None:
                    near.extend((survey.starts[-2] + chosen).tolist(), found.keys[chosen])
            progress.advance(pool.counts[0] - progress.done)
        note_findings(request, survey)
        bad = {name: str(error) for name, error in survey.findings.files.items()}
        units = [unit.without(frozenset(bad)) for unit in units]
        sample = survey.sample.numbers()
        _gather(pool, survey, units, {*sample, *(near.shared if near is not None else ())})
    if near is not None:
        dropped = _drop_near_duplicates(near, request, survey)
        sample = [number for number in sample if number not in dropped]
    texts = [survey.places[number].read() for number in sample]
    return Preview(survey=survey, units=units, bad=bad, sample=texts)


def _gather(pool: Pool, survey: Survey, units: Sequence[Unit], numbers: Iterable[int]) -> None:
    """Has texts written down that are not yet, by one more reading of their units."""
    wanted: dict[int, list[int]] = {}
    for number in numbers:
        if number not in survey.places:
            unit = bisect.bisect_right(survey.starts, number) - 1
            wanted.setdefault(unit, []).append(number - survey.starts[unit])
    jobs = [(units[unit], frozenset(inside)) for unit, inside in sorted(wanted.items())]
    for (unit, _), places in zip(
        jobs, pool.map(gather, jobs, is_here=lambda job: job[0].is_here), strict=True
    ):
        start = survey.starts[unit.number]
        survey.places.update({start + at: place for at, place in places.items()})


def note_findings(request: Request, totals: Totals) -> None:
    """Notes what the readers left out or doubted, and what is in test sets.

    Raises UsageError for files that cannot be read, unless they may be left out, and for more bad
    records than may be.
    """
    if bad := _reasons(request, totals):
        if request.skip_bad != "file":
            raise _refusal(bad, totals)
        for line in _listed(bad, "left out, since they cannot be read"):
            note(line)
    _note_bad_records(totals, request.skip_bad_limit)
    if request.contamination is not None:
        _note_contamination(request.contamination, totals, shows=request.shows_dropped)


def _note_bad_records(totals: Totals, limit: float) -> None:
    """Notes the records that were left out. Raises UsageError where they are too many."""
    found = totals.findings
    bad = sum(found.records.values())
    if not bad:
        return
    total = bad + totals.total + found.without_text
    files = [
        f"  {count:,} in {name}; the first: {found.first_bad[name]}"
        for name, count in found.records.most_common(_LISTED)
    ]
    if bad > limit * total:
        raise UsageError(
            f"{bad:,} of {total:,} records cannot be read, more than the share "
            f"`skip_bad_limit` {limit:g}:",
            *files,
        )
    for line in (f"left out {bad:,} of {total:,} records, which cannot be read:", *files):
        note(line)


def _drop_near_duplicates(near: NearDuplicates, request: Request, survey: Survey) -> set[int]:
    """Returns the numbers of the documents that are dropped."""
    numbers = sorted(near.shared)
    with Progress("near duplicates", total=len(numbers)) as progress:
        progress.describe = lambda: f"{progress.done:,} documents"

        def documents() -> Iterator[tuple[int, bytes]]:
            for number in numbers:
                yield number, survey.places[number].read()
                progress.advance()

        found = list(near.find(documents()))
    dropped = {each.number for each in found}
    survey.drop_near_duplicates(sorted(dropped))
    for each in found[:_EXAMPLES] if request.shows_dropped else ():
        note(f"near duplicate ({each.similarity:.2f}): {each.text!r} of {each.other!r}")
    return dropped


def _note_contamination(contamination: Contamination, totals: Totals, *, shows: bool) -> None:
    for source, counts in contamination.counts(totals.found_records).items():
        short = counts["records"] - counts["looked_for"]
        aside = f" ({short:,} of fewer than {FEWEST} words are not looked for)" if short else ""
        note(
            f"{source}: {counts['found']:,} of {counts['records']:,} records are in the text{aside}"
        )
    for text, records in totals.found_in[:_EXAMPLES] if shows else ():
        note(f"text of {contamination.source_of[min(records)]}: {text!r}")


def _reasons(request: Request, totals: Totals) -> dict[str, str]:
    """Returns why each bad file cannot be read. An encoding is that of all files: one that has
    another than those that were read takes a second command.
    """
    bad = {name: str(error) for name, error in totals.findings.files.items()}
    if any(totals.documents.values()) and not bad.keys() >= {*request.sources}:
        bad = {name: why.replace(OF_WINDOWS, _BY_ITSELF) for name, why in bad.items()}
    return bad


def _refusal(bad: dict[str, str], totals: Totals) -> UsageError:
    (first, *others) = bad.values()
    if others:
        listed = _listed(bad, "cannot be read")
        return UsageError(*listed, "fix them, or leave them out with `skip_bad`")
    is_said = first.endswith(_BY_ITSELF) or not any(totals.documents.values())
    return UsageError(first if is_said else f"{first}; `skip_bad` leaves the file out")


def _listed(bad: dict[str, str], what: str) -> list[str]:
    """Returns the lines of a list of files, in which a reason that several have is there once."""
    by_reason: dict[str, list[tuple[str, str]]] = {}
    for name, why in [*bad.items()][:_LISTED]:
        place, _, reason = why.removeprefix(name).partition(": ")
        of_reason = by_reason.setdefault(_BYTE.sub("", reason), [])
        of_reason.append((f"    {name}{place}", f"  {why}"))
    lines: list[str] = []
    for reason, found in by_reason.items():
        if len(found) > 1:
            lines += [f"  {len(found)} of them: {reason}", *(place for place, _ in found)]
        else:
            lines += [why for _, why in found]
    more = [f"  and {len(bad) - _LISTED:,} more"] if len(bad) > _LISTED else []
    return [f"{len(bad):,} file{'s' * (len(bad) > 1)} {what}:", *lines, *more]


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
