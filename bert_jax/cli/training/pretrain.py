"""Train on a corpus, or resume the run in the workdir.

The same command resumes an interrupted run from its newest good checkpoint. On a CPU, the resumed
run ends with the same bits as an uninterrupted run.

examples:
  bert-jax pretrain bert_base --corpus runs/corpus --workdir runs/base --fit-memory
  bert-jax pretrain bert_small_cpu --corpus runs/corpus --workdir runs/small --steps 2000 --seed 1
  bert-jax pretrain bert_small_cpu --corpus runs/corpus --workdir runs/b --optimizer.kind muon
"""

import json
import time
from pathlib import Path
from typing import Any

from bert_jax import config_loader
from bert_jax.cli.closing import COLUMNS, figure_rows
from bert_jax.cli.corpora import Corpora, corpora
from bert_jax.cli.options import (
    Address,
    Processes,
    TrainingOptions,
    WithConfig,
    require_place_for,
)
from bert_jax.cli.output import table
from bert_jax.config.fields import REQUIRED, section, setting
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.runtime.stop import Start


@section
class PretrainOptions(WithConfig, TrainingOptions):
    corpus: Corpora = setting(
        REQUIRED,
        "DIR|NAME=DIR: a directory of bert-jax prepare; repeat to train on several corpora "
        "together",
    )
    workdir: Address = setting(
        REQUIRED,
        "DIR: directory of the run: a new one, or an existing one to resume; it may be "
        "gs://BUCKET/PATH",
    )
    steps: int | None = setting(
        None, "N: number of updates; short for `--phases.steps`, for configs with one phase"
    )
    batch_size: int | None = setting(
        None,
        "N: sequences per update, over all devices; short for `--phases.global_batch_size`, for "
        "configs with one phase",
    )
    learning_rate: float | None = setting(
        None, "X: peak learning rate; short for `--optimizer.learning_rate`"
    )
    seed: int | None = setting(None, "N: seed of parameters, data order, masks and dropout")
    init_from: Address | None = setting(
        None,
        "CHECKPOINT: start a new run from the parameters of this checkpoint: a workdir, one step "
        "of it, a Hugging Face directory or a TF1 checkpoint. Model and heads come from the "
        "checkpoint; data, phases, optimizer and dropout come from CONFIG. Make the corpus with "
        "the same tokenizer: `bert-jax prepare --tokenizer CHECKPOINT`",
    )
    allow_missing_heads: bool = setting(
        False, "initialize the heads that the --init-from checkpoint lacks or has in part"
    )
    ignore_unexpected: tuple[str, ...] = setting(
        (),
        "PATTERN: leave out the extra tensors of the --init-from checkpoint with these names, for "
        "example `'cls.extra.*'`; repeat for several",
    )
    allow_change: tuple[str, ...] = setting(
        (),
        "FIELD: resume although this field (for example `optimizer.learning_rate` or corpus) or "
        "section (for example phases) differs from the workdir; repeat for several",
    )
    json: bool = setting(False, "print the final metrics as JSON in place of the table")
    profile_steps: str | None = setting(
        None, "A:B: write a trace of steps A to B to WORKDIR/profile, for TensorBoard or Perfetto"
    )

    def changes(self) -> list[str]:
        """Returns the changes of the config that all options ask for."""
        chosen = {
            "phases.steps": self.steps,
            "phases.global_batch_size": self.batch_size,
            "optimizer.learning_rate": self.learning_rate,
            "seed": self.seed,
        }
        short = [f"{field}={value}" for field, value in chosen.items() if value is not None]
        return [*short, *TrainingOptions.changes(self)]


def run(options: PretrainOptions) -> None:
    started = time.monotonic()
    require_place_for(is_directory=True, workdir=options.workdir)
    place = corpora(options.corpus)
    assert place is not None
    with Start("bert-jax pretrain", **options.fields_of(Processes)) as start:
        # With --init-from the checkpoint decides the model, so the config is checked later.
        resolved = config_loader.load_config(
            options.config, options.changes(), checked=options.init_from is None
        )
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
            own_fields=[field.partition("=")[0].strip() for field in options.changes()],
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
        packed = f"{closing['sequences_per_step']:,.0f} per step; {closing['padding']:.1%} padding"
        rows.append(("sequences/s", f"{closing['sequences_per_second']:,.1f}", packed))
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
