"""Train on a corpus, or resume the run in the workdir.

The same command resumes an interrupted run from its newest good checkpoint and ends with the same
bits as an uninterrupted one.
"""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from bert_jax import config_loader
from bert_jax.cli.closing import COLUMNS, figure_rows
from bert_jax.cli.corpora import Corpora, corpora
from bert_jax.cli.options import (
    Address,
    TrainingOptions,
    WithConfig,
    require_place_for,
)
from bert_jax.cli.output import table
from bert_jax.config import HookConfig, TrainConfig
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.registry import HOOKS
from bert_jax.runtime.stop import Start

_EXPECTED_CURVES = "expected_curves"


@section
class PretrainOptions(WithConfig, TrainingOptions):
    corpus: Corpora = setting(
        REQUIRED,
        "DIR|NAME=DIR: a directory of bert-jax prepare; repeat for [several, which are trained "
        "on together](data.md#several-corpora)",
    )
    workdir: Address = setting(
        REQUIRED,
        "DIR: where the run lives: a new directory, or that of the run to go on with; it may be"
        " [gs://BUCKET/PATH](reliability.md#a-workdir-in-a-bucket)",
    )
    init_from: Address | None = setting(
        None,
        "CHECKPOINT: start a new run from the parameters of this checkpoint: a workdir, one "
        "step of it, a Hugging Face directory or a TF1 checkpoint. The run takes over its model"
        " and heads, and takes data, phases, optimiser, dropout and [more "
        "positions](lineage.md#positions-and-blocks) from CONFIG. Its tokenizer must be the "
        "corpus's: make that with `bert-jax prepare --tokenizer CHECKPOINT`",
    )
    allow_missing_heads: bool = setting(
        False, "begin a head of --init-from afresh where it is not whole"
    )
    ignore_unexpected: tuple[str, ...] = setting(
        (),
        "PATTERN: for an --init-from of another system: leave out the extra tensors of these "
        "names, such as `'cls.extra.*'`; repeat for several",
    )
    allow_change: tuple[str, ...] = setting(
        (),
        "FIELD: go on although this field (such as `optimizer.learning_rate` or corpus), or "
        "this section (such as phases), differs from the workdir's; repeat for several",
    )
    expect: Address | None = setting(
        None,
        "FILE|RUN: a finished run with which this run is compared, or a file with its curves: a "
        "warning states [where the losses differ](reproducing.md#is-my-curve-healthy). The config "
        "of the demo has recorded curves",
    )
    json: bool = setting(False, "print the closing figures as JSON, instead of the table")
    profile_steps: str | None = setting(
        None, "A:B: trace steps A to B into WORKDIR/profile, for TensorBoard or Perfetto"
    )

    def expecting(self, config: TrainConfig) -> TrainConfig:
        """Returns the config with the hook that --expect asks for."""
        if self.expect is None:
            return config
        if _EXPECTED_CURVES not in HOOKS:
            raise UsageError(f"--expect: hook {HOOKS.problem(_EXPECTED_CURVES)}")
        others = [hook for hook in config.hooks if hook.kind != _EXPECTED_CURVES]
        hook = HookConfig.of_kind(_EXPECTED_CURVES)(expect=str(self.expect))
        return dataclasses.replace(config, hooks=(*others, hook))


def run(options: PretrainOptions) -> None:
    started = time.monotonic()
    require_place_for(is_directory=True, workdir=options.workdir)
    place = corpora(options.corpus)
    assert place is not None
    with Start("bert-jax pretrain", **options.connection()) as start:
        # Of a run that goes on from a checkpoint the model is not known yet: it is checked later.
        resolved = config_loader.load_config(
            options.config, options.changes(), checked=options.init_from is None
        )
        resolved = options.expecting(resolved)
        profile = _step_range(options.profile_steps)
        start.connect()
        from bert_jax.runtime import distributed
        from bert_jax.training.pretrain import pretrain

        closing = pretrain(
            resolved,
            corpus_directory=place,
            workdir_path=options.workdir,
            init_from=options.init_from,
            allow_missing_heads=options.allow_missing_heads,
            ignore_unexpected=options.ignore_unexpected,
            own_fields=[field.partition("=")[0].strip() for field in options.overrides],
            profile_steps=profile,
            allowed_changes=options.allow_change,
            fit_memory=options.fit_memory,
            started=started,
        )
        is_main = distributed.is_main()
    if is_main and options.json:
        print(json.dumps(closing, indent=2))
    elif is_main:
        _print_closing(options.workdir, closing)


def _print_closing(workdir: Path | str, closing: dict[str, Any]) -> None:
    expected = closing.get("expected", {})  # of the hook expected_curves
    rows = figure_rows(
        closing["objective"],
        closing["validation"],
        entropy=closing["unigram_entropy"],
        expected=expected,
    )
    if "tokens_per_second" in closing:
        rows.append(("training speed", f"{closing['tokens_per_second']:,.0f} tokens/s", ""))
    if "sequences_per_second" in closing:
        packed = f"{closing['sequences_per_step']:,.0f} a step; {closing['padding']:.1%} padding"
        rows.append(("in sequences", f"{closing['sequences_per_second']:,.1f} a second", packed))
    table(f"{workdir}, step {closing['step']:,}", COLUMNS, rows)
    for line in expected.get("warnings", ()):
        note(f"warning: {line}")


def _step_range(text: str | None) -> range | None:
    if text is None:
        return None
    start, _, stop = text.partition(":")
    if not (start.isdecimal() and stop.isdecimal() and int(start) < int(stop)):
        raise UsageError(f"--profile-steps {text}: write it as A:B with A < B, such as 20:23")
    return range(int(start), int(stop))
