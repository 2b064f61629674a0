"""Sources -> tokenizer -> corpus directory.

The sources are read twice: once to find what is wrong with them, and the tokenizer's sample
(`preview.py`), and once to encode. Both times by many processes (`pool.py`), a unit of files each
(`survey.py`): this one hears of digests and sizes, takes the documents once each, in their order,
and chooses their side of the split and the parts that they lie in (`dedup.py`). The processes
encode (`encode.py`) into files under OUTPUT/.parts; at the end these are joined, in that order, to
the shards of `store.py` (`join.py`), which come after those of a corpus that is added to
(`append.py`). A restarted run reads the sources again and keeps the pieces that it finds. The bytes
of the result do not depend on the number of processes.
"""

import dataclasses
import difflib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_jax.data.corpus import digests
from bert_jax.data.corpus.encode import Encoding, encode_units
from bert_jax.data.corpus.join import JoinedSplit, manifest_of, require_room
from bert_jax.data.corpus.output import (
    PARTS,
    as_named,
    only_writer,
    remove_samples,
    require_named,
    require_outside,
    require_own,
    storage_failures,
)
from bert_jax.data.corpus.pool import Pool
from bert_jax.data.corpus.preview import LOOKED_AT_BYTES, preview
from bert_jax.data.corpus.request import (
    CASED,
    KINDS,
    Request,
    differences_of,
    finished,
)
from bert_jax.data.corpus.store import (
    MANIFEST,
    SPLITS,
    Corpus,
    open_corpus,
    read_manifest,
)
from bert_jax.data.corpus.trained_tokenizer import forget, train_or_find
from bert_jax.data.language import codes, scripts
from bert_jax.data.language.guess import note_other_language
from bert_jax.data.matching.contamination import Contamination
from bert_jax.data.matching.near_duplicates import FEWEST_ALIKE
from bert_jax.data.sources.address import is_address
from bert_jax.data.sources.read import is_stdin, left_out
from bert_jax.data.sources.stream import SourceOptions, require_encoding, require_layout
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizer.unknown import note_unknown
from bert_jax.errors import UsageError
from bert_jax.files import local, write_whole
from bert_jax.progress import note

# Text that the tokenizer is trained on.
SAMPLE_BYTES = 64 << 20
VOCAB_SIZE = 30522  # BERT's
# What to do where the vocabulary does not fit the text.
_NO_UNKNOWN = (
    "the vocabulary is not for this text, or was altered: choose a `tokenizer` that is trained on "
    "it: wordpiece or sentencepiece, or characters for sequences such as DNA, proteins and SMILES "
    "(to continue from a model, keep its own)"
)
_MORE_KNOWN = (
    "the vocabulary lacks characters of the text, for which a larger `vocab_size` has room, or "
    "words have more than 100 characters, which wordpiece does not cut: `tokenizer` characters is "
    "for sequences such as DNA, proteins and SMILES, sentencepiece or bpe for other text"
)
_NO_UNKNOWN_ADDED = (
    "the corpus's vocabulary lacks characters of this text, or the text has words of more than 100 "
    "characters: a new `output`, prepared from all sources, has a vocabulary of its own"
)


def prepare(
    sources: Sequence[str | Path],
    output: Path | str,
    *,
    tokenizer: str | Path = "wordpiece",
    vocab_size: int | None = None,
    lowercase: bool | None = None,
    workers: int | None = None,
    validation_fraction: float = 0.01,
    seed: int = 0,
    text_field: str = SourceOptions.text_field,
    encoding: str | None = None,
    quoting: str | None = None,
    document: str = SourceOptions.document,
    paragraph: str = SourceOptions.paragraph,
    skip_bad: str | bool | None = None,
    skip_bad_limit: float = 0.01,
    validation_sources: Sequence[str | Path] = (),
    language: str | None = None,
    strip_accents: bool | None = None,
    near_duplicates: float | None = None,
    decontaminate: Sequence[str | Path] = (),
    show_dropped: bool = False,
) -> Corpus:
    """Writes the corpus directory `output`, or goes on writing it, or finds it finished.

    `sources` are as `read_documents` takes them; `text_field` is the field or column of records
    that holds the text; `encoding`, `quoting`, `document` and `paragraph` are as in
    `SourceOptions`.
    Files that cannot be read are an error that lists all of them, unless `skip_bad` "file" (or
    True) leaves them out; "record" leaves out the bad records, a share of at most `skip_bad_limit`.
    `validation_sources` are the held-out side: nothing is drawn then, and what is also in the
    training text is dropped there. `tokenizer` is "wordpiece", "sentencepiece", "bpe" or
    "characters", trained on a sample of the training documents with at most `vocab_size` tokens
    (30,522 unless another number is given), or the path of one. `lowercase` None means yes when
    training "wordpiece" or "sentencepiece", no for the others, and as the vocabulary itself is when
    loading. `strip_accents` None means, when training wordpiece that lower-cases, yes
    unless more than a hundredth of the words would lose a mark, and no for the others. `language`
    is the code of the language by whose rules sentences are cut; None is English, with a note where
    the text looks like another one. `near_duplicates` is the similarity from which on a document is
    dropped as one that was there (`near_duplicates.py`), `decontaminate` are test sets, and
    documents with their text are dropped (`contamination.py`); `show_dropped` notes the first of
    each. `workers` is the number of encoding processes, by default one a
    core.

    Raises UsageError for what is wrong with sources or options and where `output` holds something
    else, StorageFailed where it cannot be written, DataDamaged where what is there is damaged.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"`workers` {workers} is less than 1")
    output = local(output)
    request, given = asked(
        as_named(sources, "source"),
        output,
        tokenizer=str(tokenizer),
        vocab_size=vocab_size,
        lowercase=lowercase,
        validation_fraction=validation_fraction,
        seed=seed,
        text_field=text_field,
        encoding=encoding,
        quoting=quoting,
        document=document,
        paragraph=paragraph,
        skip_bad=skip_bad,
        skip_bad_limit=skip_bad_limit,
        validation_sources=as_named(validation_sources, "validation_source"),
        language=language,
        strip_accents=strip_accents,
        near_duplicates=near_duplicates,
        decontaminate=as_named(decontaminate, "decontaminate"),
        show_dropped=show_dropped,
    )
    # Where there are parts beside it, a finished corpus may be added to by another process. Who
    # holds no lock writes nothing there, as a copy of standard input would be, and removes nothing.
    is_copied = any(map(is_stdin, request.sources))
    with storage_failures(output):
        if not (output / MANIFEST).exists():
            require_own(output)
        elif not (is_copied or (output / PARTS).exists()):
            return _reopen(request, output, given)
    with only_writer(output):
        if (output / MANIFEST).exists():
            corpus = _reopen(request, output, given)
            shutil.rmtree(output / PARTS, ignore_errors=True)
            return corpus
        return write(request, output, given, workers)


def asked(
    sources: Sequence[str],
    output: Path | str,
    *,
    tokenizer: str,
    vocab_size: int | None,
    lowercase: bool | None,
    validation_fraction: float,
    seed: int,
    text_field: str,
    encoding: str | None,
    quoting: str | None,
    document: str,
    paragraph: str,
    skip_bad: str | bool | None,
    skip_bad_limit: float,
    validation_sources: Sequence[str],
    language: str | None,
    strip_accents: bool | None,
    near_duplicates: float | None,
    decontaminate: Sequence[str],
    show_dropped: bool,
) -> tuple[Request, Tokenizer | None]:
    """Returns what `prepare` is asked for, and the tokenizer, if it is given.

    Raises UsageError for options that are wrong or do not go together.
    """
    require_named(source=sources, validation_source=validation_sources, decontaminate=decontaminate)
    if not 0 < validation_fraction < 1:
        raise UsageError(f"`validation_fraction` {validation_fraction} is not between 0 and 1")
    if not 0 <= seed < 2**64:
        raise UsageError(f"`seed` {seed} is not between 0 and 2**64 - 1")
    if near_duplicates is not None and not FEWEST_ALIKE <= near_duplicates <= 1:
        raise UsageError(
            f"`near_duplicates` {near_duplicates} is not between {FEWEST_ALIKE} and 1: it is the "
            "share of common runs of words from which on two documents count as one"
        )
    if show_dropped and near_duplicates is None and not decontaminate:
        raise UsageError(
            "`show_dropped` shows what `near_duplicates` and `decontaminate` drop: name one of them"
        )
    require_encoding(encoding)
    require_layout(document, paragraph, quoting)
    for name, value, what in (
        ("lowercase", lowercase, "the case"),
        ("strip_accents", strip_accents, "accents"),
    ):
        if value and (tokenizer == "bpe" or (tokenizer, name) == ("characters", "strip_accents")):
            raise UsageError(
                f"`{name}` is for wordpiece and sentencepiece: `tokenizer` {tokenizer} keeps "
                f"{what}; leave `{name}` out, or change the sources"
            )
    reading = SourceOptions(
        text_field=text_field,
        encoding=encoding,
        quoting=quoting,
        document=document,
        paragraph=paragraph,
        skips_records=skip_bad == "record",
        outside=None if is_address(str(output)) else Path(output),
    )
    request = Request(
        sources=tuple(sources),
        tokenizer=tokenizer,
        vocab_size=VOCAB_SIZE if vocab_size is None else vocab_size,
        lowercase=tokenizer not in CASED if lowercase is None else lowercase,
        validation_fraction=validation_fraction,
        seed=seed,
        reading=reading,
        skip_bad="file" if skip_bad is True else skip_bad or None,
        skip_bad_limit=skip_bad_limit,
        held_out=tuple(validation_sources),
        language=None if language is None else codes.canonical(language),
        strip_accents=strip_accents,
        near_duplicates=near_duplicates,
        contamination=Contamination(decontaminate, reading) if decontaminate else None,
        shows_dropped=show_dropped,
    )
    if reading.outside is not None:
        require_outside((*sources, *validation_sources), reading.outside)
    if vocab_size is not None and vocab_size < 10:
        raise UsageError(f"`vocab_size` {vocab_size}: five special tokens alone are no vocabulary")
    slip = difflib.get_close_matches(tokenizer, KINDS, n=1, cutoff=0.7)
    if slip and not request.trains and not Path(tokenizer).exists():
        raise UsageError(
            f"`tokenizer` {tokenizer} is neither a kind nor a file. Did you mean {slip[0]!r}?"
        )
    given = (
        None
        if request.trains
        else load_tokenizer(tokenizer, lowercase=lowercase, strip_accents=strip_accents)
    )
    if given is not None and vocab_size not in (None, given.vocab_size):
        note(
            f"`vocab_size` {vocab_size:,} is not used: `tokenizer` {tokenizer} has "
            f"{given.vocab_size:,} sub-words"
        )
    by_character = (tokenizer if given is None else given.kind) == "characters"
    if by_character and near_duplicates is not None:
        raise UsageError(
            "`near_duplicates` compares words, and a sequence is one word: leave it out, and first "
            "cluster similar sequences, with MMseqs2 or CD-HIT for example"
        )
    return dataclasses.replace(request, by_character=by_character), given


def _cores() -> int:
    return os.cpu_count() or 1


def _reopen(request: Request, output: Path, given: Tokenizer | None) -> Corpus:
    """Returns the finished corpus in `output`, if it was made by the same request."""
    manifest = read_manifest(output)
    if differences := differences_of(manifest, request, given):
        raise UsageError(
            f"{output} holds another corpus ({'; '.join(differences)}): choose another `output`, "
            "or delete it"
        )
    corpus = open_corpus(output, verify=SPLITS)
    note(
        f"{output} {finished(manifest)}, and its checksums are right: nothing to do; its "
        "sources were not read again"
    )
    return corpus


def write(
    request: Request,
    output: Path,
    given: Tokenizer | None,
    workers: int | None = None,
    *,
    before: Corpus | None = None,
) -> Corpus:
    """Makes the corpus that is asked for, or adds to `before`, the one that is in `output`: its
    tokenizer is `given` then, and the request has its options. In the process that holds the lock.
    """
    folder = output / PARTS
    folder.mkdir(parents=True, exist_ok=True)

    workers = workers or _cores()
    for line in left_out(request.sources, request.held_out, request.tests):
        note(line)
    look = preview(
        request,
        folder,
        "sample text" if given is None else "look through sources",
        workers=workers,
        sample_bytes=SAMPLE_BYTES if given is None else LOOKED_AT_BYTES,
    )
    remove_samples(folder)
    survey = look.survey
    if before is None:
        survey.check(survey.documents)
    elif not any(survey.documents.values()):
        shutil.rmtree(folder, ignore_errors=True)
        survey.require_text()
        note(f"{output} has all of these documents already: nothing to do")
        return before
    if request.language is None:
        note_other_language(look.beginning)
    if given is None:
        tokenizer = train_or_find(
            request,
            look.sample,
            output / "tokenizer",
            folder,
            documents=survey.documents["train"],
        )
    else:
        tokenizer = given
        if before is None:
            forget(output / "tokenizer", folder)
            tokenizer.save(output / "tokenizer")
    require_room(output, folder, text_bytes=survey.text_bytes, vocab_size=tokenizer.vocab_size)
    encoding = Encoding(output / "tokenizer", tokenizer.hash, folder, request.rules)
    # More processes would have nothing to do: those of a short text begin later than it is encoded.
    with Pool(min(workers, max(len(look.units), survey.parts)), encoding) as pool:
        total = sum(survey.documents.values())
        files = encode_units(pool, look.units, survey.orders(), total)
        joined = {
            split: JoinedSplit(output, split, tokenizer.vocab_size, before=before)
            for split in SPLITS
        }
        for split in SPLITS:
            joined[split].join(files[split], pool)
            joined[split].counts["duplicate_documents"] += survey.duplicates[split]
    survey.check({split: joined[split].counts["documents"] for split in SPLITS})

    manifest = manifest_of(
        request,
        tokenizer,
        joined,
        survey,
        source_hash=survey.source_hash,
        digests=digests.add(output, before, survey.digests),
        skipped_files=look.bad,
        is_spaceless=(
            request.by_character or scripts.is_mostly_spaceless(look.beginning)
            if before is None
            else "characters" in before.manifest
        ),
        before=before,
    )
    write_whole(output / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    note_what_is_unknown(joined, is_trained=given is None, is_added=before is not None)
    return open_corpus(output)


def note_what_is_unknown(
    joined: Mapping[str, JoinedSplit], *, is_trained: bool, is_added: bool = False
) -> None:
    """Notes where the tokenizer does not know much of the text that was joined now."""
    text = joined["train"].added + joined["validation"].added
    what = "the characters that are added" if is_added else "the characters of the corpus"
    remedy = _NO_UNKNOWN_ADDED if is_added else _MORE_KNOWN if is_trained else _NO_UNKNOWN
    note_unknown(text.unknown_characters, text.characters, what, remedy)
