"""Sources -> tokenizer -> corpus directory.

The sources are read twice: first to find errors and decide which documents are kept, then to encode
them; in between, the documents of the tokenizer's sample are read again. The stages of
`pipeline.py` process units of files. An interrupted run keeps the encoded pieces and the trained
tokenizer. The bytes of the result do not depend on the number of processes or on the engine.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bert_jax import strict_json
from bert_jax.data.corpus import local, vocabulary
from bert_jax.data.corpus.decide import keep_known
from bert_jax.data.corpus.folder import (
    PARTS,
    Folder,
    only_writer,
    require_outside,
    require_own,
    storage_failures,
)
from bert_jax.data.corpus.job import Job, Unit
from bert_jax.data.corpus.options import CorpusOptions
from bert_jax.data.corpus.store import (
    MANIFEST,
    SPLITS,
    Corpus,
    open_corpus,
    read_keys,
    read_manifest,
)
from bert_jax.data.matching.contamination import Contamination
from bert_jax.data.matching.near_duplicates import require_possible
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import BertJaxError, DataDamaged, UsageError
from bert_jax.files import local as on_this_machine
from bert_jax.progress import note

# Runs the stages of a job on units of its sources.
Run = Callable[[Job, list[Unit]], object]


def prepare(
    source: Sequence[str | Path],
    output: Path | str,
    *,
    workers: int | None = None,
    **options: Any,
) -> Corpus:
    """Makes the corpus directory `output`, resumes an interrupted run, or opens a finished corpus.

    `source` and `options` are the fields of `CorpusOptions`, named like the options of
    `bert-jax prepare` with underscores: `vocab_size=8000`. Tuple fields accept any sequence of
    strings or paths. `workers` is the number of processes, by default one per core.

    Raises UsageError for invalid sources or options, or if `output` has other content;
    StorageFailed if it cannot be written, and DataDamaged if its content is damaged.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"`workers` {workers} must be at least 1")
    chosen = CorpusOptions(source=source, **options)  # type: ignore[arg-type]
    folder = on_this_machine(output)
    number = workers or os.cpu_count() or 1
    make(chosen, Folder(str(folder)), lambda: functools.partial(local.make, workers=number))
    return open_corpus(folder)


def make(options: CorpusOptions, output: Folder, engine: Callable[[], Run]) -> dict[str, Any]:
    """Makes a corpus with an engine, unless it is finished. Returns the content of corpus.json.

    `engine` is called before the sources are listed, and rejects its invalid options. Raises the
    exceptions of `prepare`.
    """
    require_outside((*options.source, *options.validation_source), output)
    if options.dedup_threshold is not None:
        require_possible(options.dedup_threshold)
    given = _given(options)
    job = _job(options, output, given)
    with storage_failures(output):
        if (found := _finished(job, given)) is not None and PARTS not in output.names():
            return found
        if found is None:
            require_own(output)
    with only_writer(output):
        # Another process may have finished it since, or was killed after writing corpus.json.
        if (found := _finished(job, given)) is not None:
            job.folder.remove_all()
            return found
        run = engine()
        if not output.is_address:  # in a bucket, an earlier job may still be running
            for left in job.folder.names():
                if left.startswith("try-"):
                    (job.folder / left).remove_all()
        try:
            outside = None if output.is_address else output.path
            job, units = job.cut(options.reading(outside=outside))
            keep_known(
                job, [read_keys(Path(of), split) for of in options.known for split in SPLITS]
            )
            if given is not None:
                vocabulary.keep_given(job, given)
            run(job, units)
        finally:
            with contextlib.suppress(BertJaxError, OSError):
                job.scratch.remove_all()
        job.folder.remove_all()
        output.remove_unfinished()
        return strict_json.parse(output.read(MANIFEST))


def _given(options: CorpusOptions) -> Tokenizer | None:
    """Returns the given tokenizer, if any. Raises UsageError for options that contradict it."""
    if options.trains:
        return None
    given = load_tokenizer(
        options.tokenizer, lowercase=options.lowercase, strip_accents=options.strips_accents
    )
    if options.vocab_size not in (None, given.vocab_size):
        note(
            f"`vocab_size` {options.vocab_size:,} is not used: `tokenizer` {options.tokenizer} "
            f"has {given.vocab_size:,} tokens"
        )
    return given


def _job(options: CorpusOptions, output: Folder, given: Tokenizer | None) -> Job:
    by_character = (options.tokenizer if given is None else given.kind) == "characters"
    if by_character and options.dedup_threshold is not None:
        raise UsageError(
            "`dedup_threshold` compares words, and a sequence is one word: remove it, and first "
            "cluster similar sequences, for example with MMseqs2 or CD-HIT"
        )
    fingerprints: list[str] = []
    for place in options.known:
        manifest = read_manifest(Path(place))
        if (manifest["tokenizer"]["kind"] == "characters") != by_character:
            raise UsageError(
                f"`known` {place}: only one of the two corpora has `tokenizer` characters, which "
                "compares documents exactly: prepare both with the same `tokenizer`"
            )
        fingerprints.append(manifest["fingerprint"])
    reading = options.reading(outside=None)
    tests = Contamination(options.decontaminate, reading) if options.decontaminate else None
    described = options.described(tests=tests and tests.hash, known=fingerprints)
    return Job(
        options=options,
        output=output,
        described=described,
        by_character=by_character,
        contamination=tests,
    )


def _finished(job: Job, given: Tokenizer | None) -> dict[str, Any] | None:
    """Returns the content of corpus.json of a finished corpus, None if there is no corpus.

    Raises UsageError for a corpus with other options, and DataDamaged for a damaged one.
    """
    output = job.output
    if not output.has(MANIFEST):
        return None
    try:
        manifest = (
            strict_json.parse(output.read(MANIFEST))
            if output.is_address
            else read_manifest(output.path)
        )
        hash_ = None if given is None else given.hash
        differences = job.options.differences(manifest, job.described, hash_)
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise DataDamaged(f"{output}/{MANIFEST} cannot be read: delete {output}") from error
    if differences:
        raise UsageError(
            f"{output} holds another corpus ({'; '.join(differences)}): choose another `output`, "
            "or delete the corpus"
        )
    if not output.is_address:
        open_corpus(output.path, verify=SPLITS)
    note(f"{output} is finished already; the sources were not read again")
    return manifest
