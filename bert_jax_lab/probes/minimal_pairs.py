"""Pairs of a grammatical and an ungrammatical sentence, with one difference.

A model that has learned the difference finds the grammatical sentence more likely (Marvin & Linzen
2018; Warstadt et al. 2020, BLiMP). The pairs are made by rule from a few words that ordinary prose
and technical documentation share, so that small models know them; all runs get the same pairs.
Pairs of a file are scored as BabyLM's scorer does it, with its backend `mlm`.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax import strict_json
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.sources.read import read_text
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UsageError
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax.progress import note
from bert_jax_lab.probes.probe import Probe, ProbeResult
from bert_jax_lab.probes.pseudo_perplexity import PseudoPerplexity

_LANGUAGE = "en"
# Singular and plural.
_NOUNS = (
    ("word", "words"),
    ("number", "numbers"),
    ("name", "names"),
    ("line", "lines"),
    ("function", "functions"),
    ("value", "values"),
)
# Verbs that fit all nouns, in the singular and in the plural.
_VERBS = (("is", "are"), ("has", "have"), ("was", "were"), ("does", "do"))
_AFTER = {
    "is": "in the list",
    "has": "the same form",
    "was": "in the list",
    "does": "the same thing",
}
# In nats: in a model without positions, rounding makes two orders of the same words differ.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences; `phenomenon` is the name of their difference."""

    phenomenon: str
    grammatical: str
    ungrammatical: str


def minimal_pairs() -> list[MinimalPair]:
    """Returns all pairs, in a fixed order.

    agreement
        The verb has the number of its subject, or the other number.
    agreement_attractor
        The same, with a noun of the other number in between (Linzen et al. 2016).
    word_order
        Two neighboring words are swapped, so that a model without positions finds both sentences
        equally likely.
    """
    pairs = []
    for number, ((one, many), verbs) in enumerate(itertools.product(_NOUNS, _VERBS)):
        rest = _AFTER[verbs[0]]
        other = _NOUNS[(number // len(_VERBS) + 1 + number % len(_VERBS)) % len(_NOUNS)]
        for subject, right, wrong, attractor in (
            (one, verbs[0], verbs[1], other[1]),
            (many, verbs[1], verbs[0], other[0]),
        ):
            for phenomenon, start in (
                ("agreement", f"The {subject}"),
                ("agreement_attractor", f"The {subject} of the {attractor}"),
            ):
                both = f"{start} {right} {rest}.", f"{start} {wrong} {rest}."
                pairs.append(MinimalPair(phenomenon, *both))
            words = f"the {subject} {right} {rest}".split()
            for place in range(len(words) - 1):
                swapped = [*words]
                swapped[place : place + 2] = words[place + 1], words[place]
                pairs.append(MinimalPair("word_order", _sentence(words), _sentence(swapped)))
    return pairs


def score_pairs(
    perplexity: PseudoPerplexity, pairs: Sequence[MinimalPair] | None = None
) -> dict[str, float]:
    """Returns for each phenomenon the share of pairs in which the grammatical sentence is more
    likely, by pseudo-log-likelihood; chance is 0.5. A pair of equally likely sentences counts half.

    The default for `pairs` is `minimal_pairs()`.
    """
    shares: dict[str, list[float]] = {}
    for pair, good, bad in _scored(perplexity, minimal_pairs() if pairs is None else pairs):
        won = 0.5 if abs(good - bad) < _ROUNDING else float(good > bad)
        shares.setdefault(pair.phenomenon, []).append(won)
    return {phenomenon: sum(won) / len(won) for phenomenon, won in shares.items()}


def _scored(
    perplexity: PseudoPerplexity, pairs: Sequence[MinimalPair]
) -> list[tuple[MinimalPair, float, float]]:
    """Returns each pair with the log likelihoods of its grammatical and ungrammatical sentence."""
    texts = dict.fromkeys(t for pair in pairs for t in (pair.grammatical, pair.ungrammatical))
    sums = {score.text: score.log_likelihood for score in perplexity.score([*texts])}
    return [(pair, sums[pair.grammatical], sums[pair.ungrammatical]) for pair in pairs]


def read_pairs(place: Path) -> list[MinimalPair]:
    """Returns the pairs of a file of JSON lines, packed or not, or of all such files of a folder.

    The fields have BLiMP's names: `sentence_good`, `sentence_bad` and `UID`, which defaults to the
    name of the file. Raises UsageError for a line of another form, and if there are no pairs.
    """
    pairs = []
    for file in sorted(place.glob("*.jsonl*")) if place.is_dir() else [place]:
        for number, line in enumerate(read_text(file).split("\n"), 1):
            if not line.strip():
                continue
            try:
                row = strict_json.parse(line)
                texts = row["sentence_good"], row["sentence_bad"]
                pairs.append(MinimalPair(row.get("UID", file.name.partition(".")[0]), *texts))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(
                    f"`pairs` {file}, line {number}: each line is a JSON object with sentence_good "
                    "and sentence_bad"
                ) from error
    if not pairs:
        raise UsageError(f"`pairs` {place}: there are no pairs in it")
    return pairs


def score_file(
    source: LoadedCheckpoint, tokenizer: Tokenizer, place: Path
) -> tuple[list[ProbeResult], list[dict[str, Any]]]:
    """Returns the accuracy for each UID and their mean, and the sums of log probabilities of each
    pair, in nats.

    The numbers equal the ones of BabyLM's scorer: each token is masked by itself, and of two
    equally likely sentences the grammatical one is chosen. The standard errors assume that pairs
    are independent.
    """
    perplexity = PseudoPerplexity(source, tokenizer, as_babylm=True)
    rows: list[dict[str, Any]] = []
    won: dict[str, list[bool]] = {}
    for pair, good, bad in _scored(perplexity, read_pairs(place)):
        rows.append({"UID": pair.phenomenon, "good": good, "bad": bad})
        won.setdefault(pair.phenomenon, []).append(good >= bad)
    shares = {uid: sum(each) / len(each) for uid, each in won.items()}
    variances = [shares[uid] * (1 - shares[uid]) / len(each) for uid, each in won.items()]
    found = [
        ProbeResult(uid, 100 * share, "%", 50.0, 100 * math.sqrt(variance))
        for (uid, share), variance in zip(shares.items(), variances, strict=True)
    ]
    mean = 100 * sum(shares.values()) / len(shares)
    error = 100 * math.sqrt(sum(variances)) / len(shares)
    return [*found, ProbeResult("mean", mean, "%", 50.0, error)], rows


def _sentence(words: Sequence[str]) -> str:
    """Returns words as a sentence, with a capital letter and a full stop."""
    text = " ".join(words)
    return f"{text[0].upper()}{text[1:]}."


def _measure(
    source: LoadedCheckpoint, tokenizer: Tokenizer, corpus: Corpus | None
) -> list[ProbeResult]:
    sources = () if corpus is None else (*corpus.sources.values(),) or (corpus,)
    languages = {each.manifest["options"].get("language") or _LANGUAGE for each in sources}
    if others := sorted(languages - {_LANGUAGE}):
        note(
            f"minimal_pairs has English sentences, but the language of the corpus is "
            f"{', '.join(others)}: the shares are meaningless for this model"
        )
    shares = score_pairs(PseudoPerplexity(source, tokenizer))
    return [ProbeResult(name, 100 * share, "%", 50.0) for name, share in shares.items()]


PROBE = Probe(_measure, parts=("mlm",))
