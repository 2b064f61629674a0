"""Checks of the corpus: its files, and whether it matches the model and the run."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from bert_jax.config import TrainConfig
from bert_jax.data.corpus.several import open_corpora
from bert_jax.data.corpus.store import SPLITS, Corpus, Split, read_manifest
from bert_jax.errors import some
from bert_jax.registry import OBJECTIVES, SEQUENCE_FORMATS
from bert_jax.training import preflight
from bert_jax.training.pretrain import pipeline_of
from bert_jax_lab.doctor.finding import PASSED, Finding, passed, warned
from bert_jax_lab.planning.padding import SourceRows, middle, source_rows

# Larger corpora are not read completely: it would take more than a minute.
_READ_WHOLE = 20_000_000_000
# The sample from the middle of the corpus: documents, and sentences.
_DOCUMENTS, _SENTENCES = 2000, 20_000
# BERT's recipe has about forty epochs (Devlin et al. 2019, appendix A.2).
_MOST_EPOCHS = 50
_MOST_PADDING, _MOST_REPEATED, _MOST_SINGLE = 0.4, 0.5, 0.5
_MOST_UNKNOWN = 0.01
# The sampled rows of the first batch, and the share of rows that may have no prediction.
_ROWS, _MOST_WITHOUT = 256, 0.02


def files(place: Path | Mapping[str, Path], config: TrainConfig | None) -> tuple[Finding, Corpus]:
    """Every file is unchanged, and made with the tokenizer of the corpus."""
    places = place.values() if isinstance(place, Mapping) else [place]
    entries = [e for each in places for e in read_manifest(each)["files"].values()]
    size = sum(entry["bytes"] for entry in entries)
    wants_all = config is None or config.data.verify == "full"
    reads_all = wants_all and size <= _READ_WHOLE
    found = open_corpora(place, verify=SPLITS if reads_all else ())
    text = (
        f"{found.train.tokens:,} training tokens, vocabulary {found.vocab_size:,}, "
        f"{len(entries)} files, {size / 1e6:,.1f} MB"
    )
    if found.sources:
        text += f", in {len(found.sources)} sources of one tokenizer"
    if wants_all and not reads_all:
        remedy = "none: 'bert-jax pretrain' compares them before its first step"
        return warned(f"{text}: too large to compare every checksum here", remedy), found
    what = "sizes and checksums" if reads_all else "sizes"
    return passed(f"{text}; {what} are unchanged"), found


def vocabulary(config: TrainConfig, corpus: Corpus) -> Finding:
    """The model has an embedding for every token, and the vocabulary matches the text."""
    preflight.require_fitting(config, corpus)
    share = (corpus.manifest.get("unknown_share") or {}).get("train", 0.0)
    if share > _MOST_UNKNOWN:
        return warned(
            f"{share:.1%} of the training tokens are [UNK]: the vocabulary does not match the text",
            "prepare the text with a vocabulary that is trained on it",
        )
    return passed(f"{corpus.vocab_size:,} tokens, model.vocab_size {config.model.vocab_size:,}")


def padding(config: TrainConfig, corpus: Corpus) -> Finding:
    """The corpus has rows for every phase, and the rows are mostly text."""
    shares = []
    for number in range(len(config.phases)):
        is_packed = config.in_phase(number).data.packing != "none"
        shares.append(
            sum(
                each.share * (each.epoch.packed if is_packed else each.epoch.unpacked)
                for each in _sources(config, corpus, number)
            )
        )
    text = ", ".join(
        f"{100 * share:.0f} % of {phase.sequence_length}"
        for share, phase in zip(shares, config.phases, strict=True)
    )
    worst = int(np.argmax(shares))
    if shares[worst] <= _MOST_PADDING:
        return passed(f"padding is {text}")
    length = config.phases[worst].sequence_length
    enough = max(8, round(length * (1 - shares[worst]) * 1.2 / 8) * 8)
    remedy = f"set phases.{worst}.sequence_length={enough}"
    if config.in_phase(worst).data.packing == "none":
        remedy = f"set data.packing=best_fit, or {remedy}"
    return warned(f"padding is {text}: this share of the computation is wasted", remedy)


def predictions(config: TrainConfig, corpus: Corpus) -> Finding:
    """Every row has a token to predict, also with masks of whole words or spans."""
    return _worst(
        _predictions_of(config, corpus, name, split) for name, split in _trained(config, corpus)
    )


def _predictions_of(config: TrainConfig, corpus: Corpus, name: str, split: Split) -> Finding:
    pipeline = pipeline_of(config, corpus, middle(split, _DOCUMENTS))
    batch = pipeline.batch_at(0, range(min(config.phases[0].global_batch_size, _ROWS)))
    if "mlm_weights" not in batch:
        return passed(f"{config.objective} predicts no masked tokens")
    each = batch["mlm_weights"].sum(1)
    without = int((each == 0).sum())
    share = each.sum() / max(int((batch["sequence_ids"] > 0).sum()), 1)
    text = (
        f"{name}{without:,} of {len(each):,} rows have no prediction; {share:.1%} of the tokens "
        "have one"
    )
    if without <= _MOST_WITHOUT * len(each):
        return passed(text)
    return warned(
        text, "set data.masking=tokens, or prepare again: words are longer than the mask may be"
    )


def epochs(config: TrainConfig, corpus: Corpus) -> Finding:
    """The text is not repeated too often."""
    times: dict[str, float] = {}
    for number in range(len(config.phases)):
        for source in _sources(config, corpus, number):
            times[source.name] = times.get(source.name, 0.0) + source.epochs
    most_first = sorted(times.items(), key=lambda item: -item[1])
    listed = some(f"{each:.1f} epochs of {name or 'the text'}" for name, each in most_first)
    text = f"the run reads {listed}"
    name, most = most_first[0]
    if most <= _MOST_EPOCHS:
        return passed(text)
    return warned(
        f"{text}; the original recipe has 40 epochs",
        f"prepare {most / 40:.1f} times as much text, train fewer steps (phases.0.steps) or a "
        f"smaller model, or give {name or 'a source'} less weight (data.source_weights)",
    )


def text(config: TrainConfig | None, corpus: Corpus) -> Finding:
    """No source is trained on the validation split of another source; documents have several
    sentences, and few sentences are repeated.
    """
    if seen := preflight.held_out_elsewhere(config, corpus):
        return warned(*seen)
    return _worst(_text_of(config, name, split) for name, split in _trained(config, corpus))


def _text_of(config: TrainConfig | None, name: str, split: Split) -> Finding:
    part = middle(split, _DOCUMENTS)
    sentences = np.diff(part.document_starts)
    single = float((sentences == 1).mean())
    repeated = _repeated(part)
    found = (
        f"{name}{sentences.mean():.1f} sentences per document; {100 * repeated:.0f} % of the "
        "tokens are in repeated sentences"
    )
    if repeated > _MOST_REPEATED:
        return warned(found, "drop repeated lines (menus, notices, copies) before prepare")
    pairs = config is not None and "nsp" in OBJECTIVES[config.objective].losses
    if pairs and single > _MOST_SINGLE:
        return warned(
            f"{name}{100 * single:.0f} % of the documents are one sentence: no sentence follows it",
            "separate documents, not sentences, by blank lines; or set objective=mlm",
        )
    return passed(found)


def _trained(config: TrainConfig | None, corpus: Corpus) -> Iterator[tuple[str, Split]]:
    """Yields the training split of each source with rows, and the beginning of its finding."""
    sources = corpus.sources
    if not sources:
        yield "", corpus.train
        return
    shares = preflight.largest_shares(config, corpus)
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        if share:
            yield f"{name}: ", sources[name].train


def _worst(findings: Iterable[Finding]) -> Finding:
    """Returns the first finding that is not passed; without one, the first."""
    each = list(findings)
    return next((finding for finding in each if finding.result != PASSED), each[0])


def _sources(config: TrainConfig, corpus: Corpus, number: int) -> list[SourceRows]:
    """Returns the rows of a phase per source. Raises UsageError for a corpus without rows."""
    length = config.phases[number].sequence_length
    for source in corpus.sources.values() or (corpus,):
        # Evaluation makes rows of the validation split.
        rows = SEQUENCE_FORMATS[config.in_phase(number).data.sequence_format]
        rows.check(source.validation, sequence_length=length)
    return source_rows(config, corpus, number, most_documents=_DOCUMENTS)


def _repeated(part: Split) -> float:
    """Returns the share of tokens in sentences that repeat an earlier sentence."""
    seen, repeated, total = set[bytes](), 0, 0
    for number in range(min(_SENTENCES, len(part.sentence_starts) - 1)):
        ids = part.sentence(number)
        total += len(ids)
        repeated += len(ids) if ids.tobytes() in seen else 0
        seen.add(ids.tobytes())
    return repeated / max(total, 1)
