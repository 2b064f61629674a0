"""Measure what a model has learned, without training.

minimal_pairs measures grammar: which of two sentences has the higher pseudo-likelihood.
pseudo_perplexity measures how well the model predicts each token of held-out sentences. Both use
the masked-LM head.

examples:
  bert-jax probe runs/first --corpus runs/corpus
  bert-jax probe runs/first --probe minimal_pairs --json
  bert-jax probe runs/first --pairs blimp.jsonl.gz
"""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

from bert_jax.cli.options import FromCheckpoint, require_place_for
from bert_jax.cli.output import table
from bert_jax.config.fields import section, setting
from bert_jax.errors import BertJaxError, UsageError
from bert_jax.files import write_json
from bert_jax.progress import note, number, ticking
from bert_jax.registry import PROBES

# The probe that `pairs` is for.
_OF_PAIRS = "minimal_pairs"


@section
class ProbeOptions(FromCheckpoint):
    corpus: Path | None = setting(
        None,
        "DIR: a directory of bert-jax prepare, for held-out sentences (default: the corpus of the "
        "run)",
    )
    probe: tuple[str, ...] = setting(
        (),
        "NAME: minimal_pairs, pseudo_perplexity or a probe that an --extend file registers; repeat "
        "for several (default: all that the heads of the model allow)",
    )
    pairs: Path | None = setting(
        None,
        "FILE: pairs for minimal_pairs, in place of its own: JSON lines with sentence_good, "
        "sentence_bad and UID, as in BLiMP, or a folder of such files. Each token is masked "
        "by itself, as in BabyLM's scorer, and JSON output has the sums of each pair",
    )
    output: Annotated[Path | None, "--output-file"] = setting(
        None, "FILE: JSON file to write, as --json prints it"
    )
    json: bool = setting(False, "print the results as JSON in place of a table")


def run(options: ProbeOptions) -> None:
    names = options.probe or (PROBES.names() if options.pairs is None else (_OF_PAIRS,))
    if options.pairs is not None and _OF_PAIRS not in names:
        raise UsageError(f"`pairs` is for `probe` {_OF_PAIRS}")
    for name in names:
        if name not in PROBES:
            raise UsageError(f"`probe` {PROBES.problem(name)}")
    require_place_for(output=options.output)
    from bert_jax.api.model import load
    from bert_jax.data.corpus.several import open_corpora
    from bert_jax.pretrained.load import require_parts, require_same_tokenizer
    from bert_jax.workdir.run_directory import corpus_of

    corpus = None if options.corpus is None else open_corpora(options.corpus)
    model = load(options.checkpoint, ignore_unexpected=options.ignore_unexpected)
    source, tokenizer = model.source, model.tokenizer
    if corpus is None and (place := corpus_of(source.directory)) is not None:
        with contextlib.suppress(BertJaxError):  # it may be on another machine
            found_there = open_corpora(place)
            require_same_tokenizer(source, found_there)
            corpus = found_there
    if corpus is not None:
        require_same_tokenizer(source, corpus)
    findings, sums = [], {}
    for name in dict.fromkeys(names):
        try:
            probe = PROBES[name]
            require_parts(source, *probe.parts)
            if probe.needs_corpus and corpus is None:
                raise UsageError("it needs held-out sentences: name a `corpus`")
            with ticking(name):
                if name == _OF_PAIRS and options.pairs is not None:
                    from bert_jax_lab.probes.minimal_pairs import score_file

                    found, sums["pairs"] = score_file(source, tokenizer, options.pairs)
                else:
                    found = probe.measure(source, tokenizer, corpus)
        except UsageError as error:
            if name in options.probe or options.pairs is not None:
                raise
            note(f"{name} is left out: {error}")
            continue
        findings += [{"probe": name} | dataclasses.asdict(finding) for finding in found]
    report = {"checkpoint": str(options.checkpoint), "step": source.step, "findings": findings}
    report |= sums
    if options.output is not None:
        write_json(options.output, report)
    if options.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print(findings)


def _print(findings: list[dict[str, Any]]) -> None:
    rows = [
        (
            found["probe"],
            found["name"].replace("_", " "),
            _value(found["value"], found["unit"], found["standard_error"]),
            "" if found["guessing"] is None else _value(found["guessing"], found["unit"]),
        )
        for found in findings
    ]
    table("What the model has learned", ("probe", "measure", "value", "chance"), rows)


def _value(value: float, unit: str, error: float | None = None) -> str:
    spread = "" if error is None else f" ± {number(error, ',.1f')}"
    return f"{number(value, ',.1f')}{spread} {unit}".rstrip()
