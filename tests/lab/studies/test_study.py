"""Studies: the runs in order, failures and interruptions, tables, figures and laws."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_jax
from bert_jax import file_lock
from bert_jax.__main__ import main
from bert_jax.cli.options import require_place_for
from bert_jax.cli.usage import command_parser
from bert_jax.config import OptimizerConfig, PhaseConfig
from bert_jax.data.corpus.prepare import prepare
from bert_jax.errors import Interrupted, Preempted, StorageFailed, UsageError
from bert_jax.registry import MIXERS, OBJECTIVES
from bert_jax.workdir import log_reader
from bert_jax.workdir.metrics_log import MetricsLogger
from bert_jax_lab.studies import corpus_tasks, law, result, study, table
from bert_jax_lab.studies.plan import (
    PROBES_FILE,
    StudyPlan,
    StudyRun,
    flops_of,
    plan_study,
)
from bert_jax_lab.studies.run import Outcome, make_missing, missing, record_of, write_record
from tests import tiny_corpus

_STUDY = """
from bert_jax_lab.studies.study import Study, StudyTask, Variant

def study():
    return Study(
        title="Two shares of masks",
        base="tiny.json",
        # The variants differ in their data only, so that all runs have one compiled step.
        variants=(Variant("eight"), Variant("nine", ("data.mask_token_prob=0.9",))),
        seeds=2,
        tasks={tasks},
    )

def without():
    return "nothing"
"""
_TASK = 'StudyTask("word_order", rule="word_order", epochs=1, length=32)'
_NINE = 'Variant("nine", ("data.mask_token_prob=0.9",))'
_PROBED = {"seeds=2": 'seeds=2, probes=("minimal_pairs",)'}


def write_study(folder: Path, changes: dict[str, str] | None = None, *, tasks: str = "()") -> Path:
    """Writes a study of two variants and two seeds, with its config; returns its file."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_corpus.tiny_config(
        phases=(PhaseConfig(sequence_length=32, steps=6, global_batch_size=16, max_predictions=5),),
        optimizer=OptimizerConfig(warmup_steps=1),
    )
    tiny_corpus.write_config(folder / "tiny.json", config)
    path = folder / "two.py"
    text = _STUDY.format(tasks=tasks)
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return path


def planned(path: Path | str, workdir: Path, corpus: Path | None = None, **options) -> StudyPlan:
    return plan_study(study.load_study(str(path)), workdir, corpus=corpus, **options)


def named(plan: StudyPlan, name: str) -> StudyRun:
    return next(run for run in plan.runs if run.name == name)


def in_process(run, held, show) -> Outcome:
    """Makes a run in this process."""
    return Outcome(main(run.command))


def losses(run) -> float:
    return {"eight": 3.0, "nine": 2.5}[run.variant] + 0.25 * run.seed


@dataclass
class Pretended:
    """Ends runs at once, with the files of a real run; the last validation loss is `loss(run)`."""

    loss: Callable[[Any], float] = losses
    # Name of a run -> how it ends.
    outcomes: dict = field(default_factory=dict)
    made: list = field(default_factory=list)

    def __call__(self, run, held, show) -> Outcome:
        self.made.append(run.name)
        outcome = self.outcomes.get(run.name, Outcome(0))
        if outcome.code:
            return outcome
        if run.probes:
            require_place_for(output=run.folder / PROBES_FILE)  # as `bert-jax probe` does
        run.folder.mkdir(parents=True, exist_ok=True)
        if run.config is not None:
            loss, end = self.loss(run), run.config.total_steps
            log = MetricsLogger(run.folder)
            log.event("start", step=0, seconds=1.0)
            for step in (end // 2, end):
                now, score = time.time(), loss + (step < end)
                log.row(step=step, loss=loss, step_seconds=0.5, steps=3, time=now)
                log.row(step=step, split="validation", mlm_loss=score, perplexity=9.0, time=now)
            log.close()
        elif run.task is not None:
            best = {"accuracy": {"median": 50.0 + 10 * run.seed}, "macro_f1": {"median": 40.0}}
            found = {"metric": "accuracy", "best": {"scores": best}}
            (run.folder / "results.json").write_text(json.dumps(found))
        elif run.probes:
            each = {"unit": "%", "guessing": 50.0, "value": 60.0 + run.seed}
            answers = [
                {"probe": "minimal_pairs", "name": name} | each for name in ("agreement", "order")
            ]
            (run.folder / PROBES_FILE).write_text(json.dumps({"findings": answers}))
        return outcome


def make(plan: StudyPlan, execute=None):
    """Makes the missing runs of a plan; returns the names of the executed runs."""
    execute = execute or Pretended()
    make_missing(plan, execute, stopped_by=lambda: "")
    return execute.made


# --- real runs ------------------------------------------------------------------------------------


def test_an_interrupted_study_resumes_with_equal_bits(tmp_path, corpus, monkeypatch):
    """The first of four runs gets SIGTERM at step 3; no step is trained twice or lost."""
    path = write_study(tmp_path)
    plan = planned(path, tmp_path / "cut", corpus)
    cut = named(plan, "eight.seed0")
    written, pretended = MetricsLogger.row, Pretended()

    def row(self, **values):
        written(self, **values)
        if values["step"] == 3 and "split" not in values:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)

    def execute(run, held, show):
        return (in_process if run is cut else pretended)(run, held, show)

    monkeypatch.setattr(MetricsLogger, "row", row)
    with pytest.raises(Preempted, match=r"eight\.seed0: "):
        make_missing(plan, execute, stopped_by=lambda: "")
    monkeypatch.setattr(MetricsLogger, "row", written)
    assert not pretended.made and record_of(cut) is None

    # The first seed of both variants comes first.
    names = ["eight.seed0", "nine.seed0", "eight.seed1", "nine.seed1"]
    assert make_missing(plan, execute, stopped_by=lambda: "") == names
    assert make_missing(plan, execute, stopped_by=lambda: "") == []
    whole = named(planned(path, tmp_path / "whole", corpus), "eight.seed0")
    assert in_process(whole, 0, print).code == 0
    kept = [
        [(row["step"], row.get("split"), row["loss"]) for row in log_reader.read_rows(r.folder)]
        for r in (whole, cut)
    ]
    assert kept[0] == kept[1] and len(kept[0]) == 7  # six steps, one evaluation
    params, others = (leaves(bert_jax.load(run.folder).params) for run in (whole, cut))
    for leaf, other in zip(params, others, strict=True):
        np.testing.assert_array_equal(leaf, other)
    starts = {run["run"]: run["starts"] for run in result.collect(plan)["runs"]}
    assert starts == {name: 2 if name == "eight.seed0" else 1 for name in starts}


def leaves(params) -> list[np.ndarray]:
    import jax

    return [np.asarray(leaf) for leaf in jax.tree.leaves(params)]


# --- folders, order, failures, locks --------------------------------------------------------------


def test_an_edited_study_plans_other_folders_for_what_depends_on_the_edit(tmp_path, corpus):
    def folders(changes=None, *, task=_TASK, corpus=corpus, **options):
        path = write_study(tmp_path, changes, tasks=f"({task},)")
        plan = planned(path, tmp_path / "w", corpus, **options)
        return {run.name: run.folder.name for run in plan.runs}

    def changed(*args, **kwargs):
        now = folders(*args, **kwargs)
        return {name for name in before if now.get(name) not in (None, before[name])}

    before = folders()
    assert changed() == set()
    assert len({*before.values()}) == len(before)
    nine = {name for name in before if name.startswith("nine")}
    assert changed({_NINE: _NINE.replace("0.9", "0.7")}) == nine
    runs = nine | {name for name in before if name.startswith("eight")}
    tasks = {name for name in runs if name.endswith("word_order")}
    assert changed(task=_TASK.replace("epochs=1", "epochs=2")) == tasks
    assert changed(steps=4) == {name for name in runs if "seed0" in name}
    assert changed(overrides=["optimizer.learning_rate=0.5"]) == runs
    assert changed(corpus=None) == {*before}  # the study makes its corpus


def test_a_removed_folder_is_made_again(tmp_path, corpus):
    plan = planned(write_study(tmp_path, tasks=f"({_TASK},)"), tmp_path / "w", corpus)
    make(plan)
    shutil.rmtree(named(plan, "nine.seed1").folder)
    assert make(plan) == ["nine.seed1"]


def test_a_failed_run_is_a_row_and_the_other_runs_are_made(tmp_path, corpus):
    plan = planned(write_study(tmp_path, tasks=f"({_TASK},)"), tmp_path / "study", corpus)
    ends = {
        "eight.seed0": Outcome(8, "step 9: the run has diverged"),
        "nine.seed0.word_order": Outcome(137, "killed"),
        "nine.seed1.word_order": Outcome(2, "load that file with --extend"),
    }
    assert make(plan, Pretended(outcomes=ends)) == [
        "eight.seed0", "nine.seed0", "nine.seed0.word_order",
        "eight.seed1", "eight.seed1.word_order", "nine.seed1", "nine.seed1.word_order",
    ]  # fmt: skip
    found = result.collect(plan)
    states = {run["run"]: (run["status"], run.get("reason", "")) for run in found["runs"]}
    assert states["eight.seed0"] == ("failed", "step 9: the run has diverged")
    assert states["eight.seed0.word_order"] == ("blocked", "eight.seed0 failed")
    assert states["nine.seed0.word_order"] == ("failed", "killed")
    assert sum(state == "done" for state, _ in states.values()) == 4
    text = table.markdown(found)
    assert "| eight.seed0 | 8 | step 9: the run has diverged |" in text
    assert "| eight | 1 of 2 |" in text
    # A diverged run would diverge again; a killed run, or one with a missing file, is repeated.
    assert make(plan) == ["nine.seed0.word_order", "nine.seed1.word_order"]


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome(7, "No space left on device"), StorageFailed),
        (Outcome(42, "preempted"), Preempted),
        (Outcome(130, "interrupted", "SIGINT"), Interrupted),
        (Outcome(143, "", "SIGTERM"), Preempted),
    ],
)
def test_a_cause_outside_of_a_run_stops_the_study(tmp_path, corpus, outcome, error):
    plan = planned(write_study(tmp_path), tmp_path / "study", corpus)
    with pytest.raises(error, match="nine"):
        make(plan, Pretended(outcomes={"nine.seed0": outcome}))
    left = ["nine.seed0", "eight.seed1", "nine.seed1"]
    assert [run.name for run in missing(plan)] == left == make(plan)


def test_a_signal_stops_the_study_between_runs(tmp_path, corpus):
    plan = planned(write_study(tmp_path), tmp_path / "study", corpus)
    told = iter(("", "SIGINT"))
    with pytest.raises(Interrupted):
        make_missing(plan, Pretended(), stopped_by=lambda: next(told))
    assert [run.name for run in missing(plan)] == ["nine.seed0", "eight.seed1", "nine.seed1"]


def test_a_run_that_another_process_holds_is_left_to_the_process(tmp_path, corpus):
    plan = planned(write_study(tmp_path), tmp_path / "study", corpus)
    pretended = Pretended()
    lock = plan.workdir / "locks" / named(plan, "nine.seed0").folder.name
    with file_lock.hold(lock) as held:
        assert held is not None
        # At the second look at the held run after the other runs.
        told = iter([""] * 6 + ["SIGTERM"])
        with pytest.raises(Preempted):
            make_missing(plan, pretended, stopped_by=lambda: next(told))
        assert pretended.made == ["eight.seed0", "eight.seed1", "nine.seed1"]
    assert make(plan) == ["nine.seed0"]


# --- invalid studies ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seeds=2": 'probes=("minimal_pairs",)', "tasks=()": 'tasks=(StudyTask("probes"),)'},
         "'probes' is taken"),
        ({"seeds=2": 'probes=("minimal_pair",)'}, "Did you mean 'minimal_pairs'"),
        ({"seeds=2": "columns=()"}, "columns"),
        ({"seeds=2": 'compare="last"'}, "last.*compare"),
        ({"seeds=2": 'seeds="3"'}, "seeds"),
        # A missing comma.
        ({'(Variant("eight"), ' + _NINE + ")": '(Variant("a"))'}, r"variants.*comma"),
        ({'(Variant("eight"), ' + _NINE + ")": '("a", "b")'}, r"variants\[0\]"),
        ({'("data.mask_token_prob=0.9",)': '("data.mask_token_prob=0.9")'}, "overrides.*comma"),
    ],
)  # fmt: skip
def test_an_invalid_study_is_one_error_that_names_the_field(tmp_path, changes, named):
    with pytest.raises(UsageError, match=f"two.py: .*{named}"):
        study.load_study(str(write_study(tmp_path, changes)))


@pytest.mark.parametrize(
    ("changes", "options", "named"),
    [
        ({"tasks=()": 'tasks=(StudyTask("order", rule="wordorder"),)'}, (), "rule is 'wordorder'"),
        ({"tasks=()": 'tasks=(StudyTask("order", ("--learning-rte", "1")),)'}, (), "learning-rte"),
        ({"tasks=()": 'tasks=(StudyTask("order", ("--seed", "7")),)'}, (), "--seed"),
        ({"tasks=()": 'tasks=(StudyTask("order", ("--epochs=9",)),)'}, (), "--epochs=9"),
        ({"seeds=2": 'columns=("mlm_los",)'}, (), "Did you mean 'mlm_loss'"),
        ({"seeds=2": 'columns=("mlm_loss", "rtd_auc")'}, (), "'rtd_auc'"),
        ({"seeds=2": 'overrides=("seed=7",)'}, (), "remove name= and seed="),
        ({'"data.mask_token_prob=0.9"': '"name=mine"'}, (), "remove name= and seed="),
        ({}, ("--set", "seed=7"), "remove name= and seed="),
        ({}, ("--set", "model.width=3"), "variant eight"),
        ({}, ("--preset", "paper"), "paper()"),
        ({}, ("--preset", "without"), "without()"),
        ({}, ("--steps", "0"), "--steps 0"),
    ],
)
def test_an_invalid_command_makes_no_runs(tmp_path, corpus, capsys, changes, options, named):
    path = write_study(tmp_path, changes)
    command = ["study", str(path), "--workdir", str(tmp_path / "w"), "--corpus", str(corpus)]
    try:
        code = main([*command, *options])
    except SystemExit as error:  # argparse's
        code = error.code
    assert code == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


# --- commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", study.shipped_names())
def test_commands_of_shipped_studies_are_valid(name, tmp_path):
    parser = command_parser()
    for scale in ["study"] + ["paper"] * (name == "ladder"):
        found = study.load_study(name, scale=scale)
        for steps in (None, 20):
            plan = plan_study(found, tmp_path, steps=steps)
            assert len({run.name for run in plan.runs}) == len(plan.runs)
            for run in plan.runs:
                if run.rule:
                    continue
                arguments = parser.parse_args(run.command)
                assert arguments.verb in ("prepare", "pretrain", "finetune", "probe")
                if run.config and steps:
                    assert run.config.total_steps in (1, 20)
                if run.task and steps:
                    assert arguments.train_rows == 64


def test_the_help_names_all_shipped_studies(capsys):
    with pytest.raises(SystemExit):
        main(["study", "--help"])
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    assert words >= {*study.shipped_names()}


def test_a_dry_run_lists_the_commands_and_the_page_has_the_command_of_the_study(
    tmp_path, corpus, capsys, monkeypatch
):
    path = write_study(tmp_path, tasks=f"({_TASK},)")
    extension = tmp_path / "mine.py"
    extension.write_text("")
    words = ["study", str(path), "--workdir", str(tmp_path / "w"), "--corpus", str(corpus)]
    words += ["--set", "log_every_steps=3", "--extend", str(extension)]
    assert main([*words, "--dry-run"]) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [line[1] for line in commands] == ["pretrain", "finetune"] * 4
    assert all("--extend" in line for line in commands)
    assert not (tmp_path / "w").exists()
    monkeypatch.setattr("bert_jax_lab.studies.run.make_missing", lambda *_, **__: [])
    assert main([*words, "--json"]) == 0
    assert shlex.split(json.loads(capsys.readouterr().out)["command"]) == ["bert-jax", *words]


def test_a_base_in_python_is_executed_before_tasks_and_probes(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(MIXERS, "_entries", {**MIXERS._entries})
    changes = {"tiny.json": "mine.py", "seeds=2": 'probes=("pseudo_perplexity",)'}
    path = write_study(tmp_path, changes, tasks=f"({_TASK},)")
    (tmp_path / "mine.py").write_text("""
from bert_jax.config_loader import load_config
from bert_jax.registry import MIXERS

MIXERS.register("theirs", MIXERS["attention"])

def config():
    return load_config("tiny_docs_cpu", ["model.mixer=theirs", "model.vocab_size=240"])
""")
    plan = planned(path, tmp_path / "study", corpus)
    for name in ("eight.seed0.word_order", "eight.seed0.probes"):
        words = named(plan, name).command
        assert words[words.index("--extend") + 1] == str(tmp_path / "mine.py")


def test_variants_get_equal_compute_and_the_probes_for_which_they_have_heads(tmp_path):
    plan = planned("objectives", tmp_path)
    asked = {run.variant: run.probes for run in plan.runs if run.probes}
    assert asked["mlm"] == ("minimal_pairs", "pseudo_perplexity")
    assert "replaced_tokens" not in asked
    configs = {run.variant: run.config for run in plan.runs if run.config}
    flops = {name: flops_of(config) for name, config in configs.items()}
    assert configs["replaced_tokens"].total_steps < configs["mlm"].total_steps
    for name, value in flops.items():
        assert abs(value / flops["mlm_nsp"] - 1) < 1e-3, name


def test_a_run_that_ends_early_counts_the_tokens_until_its_end(tmp_path, corpus):
    run = named(planned(write_study(tmp_path), tmp_path / "study", corpus), "eight.seed0")
    assert run.config is not None and run.config.total_steps == 6
    run.folder.mkdir(parents=True)
    log = MetricsLogger(run.folder)
    log.row(step=2, loss=1.0, step_seconds=0.5, steps=2, time=1.0)
    log.row(step=3, split="validation", mlm_loss=1.0, time=2.0)
    log.close()
    write_record(run, Outcome(8, "step 3: the run has diverged"))
    found = record_of(run)
    assert found is not None
    assert found["tokens"] == 3 * 16 * 32


# --- rows that are made from a corpus -------------------------------------------------------------


def test_rows_of_tasks_are_balanced_and_from_the_validation_split(tmp_path, corpus):
    corpus_tasks.write_rows(corpus, "word_order", tmp_path)
    texts = {}
    for path in corpus_tasks.files_of(tmp_path):
        lines = path.read_text().splitlines()
        rows = [line.split("\t") for line in lines[1:]]
        assert lines[0] == "a\tb\tlabel" and len(rows) >= 20
        for (whole, _, zero), (moved, _, one) in zip(rows[::2], rows[1::2], strict=True):
            assert (zero, one) == ("0", "1") and whole != moved
            # A bag of words is equal in both forms.
            assert sorted(whole.split()) == sorted(moved.split())
        texts[path.stem] = {row[0] for row in rows[::2]}
    assert not texts["train"] & texts["dev"] or len(texts["train"] & texts["dev"]) < 5


def test_labels_follow_the_rules():
    draw = np.random.default_rng(0)
    stories = [[[" a", f" {n}", f" {i}"] for i in range(6)] for n in range(5)]
    pairs = corpus_tasks.bigram_shift(stories, draw)
    assert len(pairs) == 2 * 30
    for whole, shifted in zip(pairs[::2], pairs[1::2], strict=True):
        assert (whole[2], shifted[2]) == (0, 1)
        before, after = whole[0].split(), shifted[0].split()
        moved = [i for i in range(3) if before[i] != after[i]]
        assert moved in ([0, 1], [1, 2])
        assert [before[i] for i in moved] == [after[i] for i in reversed(moved)]
    for rule in corpus_tasks.PAIRS:
        rows = corpus_tasks.RULES[rule](stories, draw)
        assert sum(label for *_, label in rows) * 2 == len(rows) == 30
        for a, b, label in rows:
            (_, m, i), (_, n, j) = a.split(), b.split()
            if rule == "same_document":
                assert (m == n) == label
            else:
                assert m == n and int(j) - int(i) == (-1 if label else 1)


def test_rows_of_tasks_have_spaces_where_the_text_has_spaces(tmp_path):
    """Japanese has no spaces; English words in the same corpus have spaces."""
    draw = np.random.default_rng(0).choice
    words = ["学校", "東京", "日本", "の", "水"]
    texts = ["".join(draw(words, 9)) + "。" for _ in range(40)]
    texts += ["The " + " ".join(draw(["cat", "dog", "bird"], 8)) + "." for _ in range(40)]
    (tmp_path / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    prepare(
        [str(tmp_path / "text.txt")], tmp_path / "corpus", tokenizer="bpe", vocab_size=300,
        validation_fraction=0.6, workers=1, lowercase=False,
    )  # fmt: skip
    corpus_tasks.write_rows(tmp_path / "corpus", "word_order", tmp_path / "rows")
    lines = (tmp_path / "rows" / "train.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    assert len(rows) > 20
    for (whole, *_), (moved, *_) in zip(rows[::2], rows[1::2], strict=True):
        assert whole in texts and (" " in moved) == (" " in whole)
        if " " in whole:
            assert sorted(moved.split(" ")) == sorted(whole.split(" "))


# --- tables ---------------------------------------------------------------------------------------


def test_tables_have_medians_ranges_and_differences(tmp_path, corpus):
    draw = np.random.default_rng(1)
    values = {name: draw.uniform(2, 4, 5) for name in ("eight", "nine")}
    plan = planned(
        write_study(tmp_path, {"seeds=2": "seeds=5"}, tasks=f"({_TASK},)"), tmp_path / "w", corpus
    )
    make(plan, Pretended(lambda run: float(values[run.variant][run.seed])))
    found = result.collect(plan)
    columns, rows = table.brief(found)
    for variant, row in zip(found["variants"], rows, strict=True):
        own = values[variant["variant"]]
        assert variant["figures"]["mlm_loss"] == {
            "median": pytest.approx(np.median(own)),
            "lowest": own.min(),
            "highest": own.max(),
            "runs": 5,
        }
        cell = f"{np.median(own):.3f} ({own.min():.3f} to {own.max():.3f})"
        assert row[columns.index("MLM loss")] == cell
        assert variant["tasks"]["word_order"]["median"] == 70.0
        assert variant["training_seconds"]["median"] == 3.0
    compared = found["variants"][1]["compared"]
    assert compared["difference"] == pytest.approx(
        np.median(values["nine"]) - np.median(values["eight"])
    )
    assert compared["is_beyond_spread"] == (values["nine"].max() < values["eight"].min())
    by_seed = values["nine"] - values["eight"]
    assert compared["by_seed"] == pytest.approx(list(by_seed))
    assert f"(seed by seed {by_seed[0]:+.3f}, {by_seed[1]:+.3f}" in rows[1][-1]
    text = table.markdown(found)
    assert "Beyond the spread: " in text
    assert "| guessing |" in text and "| 50 |" in text
    (said,) = table.other_rows(found)
    assert "nine and eight (data.mask_token_prob)" in said and said in text
    curve = found["runs"][0]["curve"]
    assert [point["tokens"] for point in curve] == [3 * 16 * 32, 6 * 16 * 32]
    assert [point["seconds"] for point in curve] == [1.5, 3.0]


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        (("phases.0.max_predictions=1",), "max_predictions"),
        # Five slots are enough for 15 % of 32 tokens.
        (("phases.0.max_predictions=9", "objective=mlm"), ""),
        (("objective=their-own",), "objective"),
    ],
)
def test_losses_on_other_validation_rows_are_named(tmp_path, corpus, monkeypatch, changes, differs):
    monkeypatch.setitem(OBJECTIVES._entries, "their-own", OBJECTIVES["mlm"])
    path = write_study(tmp_path, {'("data.mask_token_prob=0.9",)': repr(changes)})
    plan = planned(path, tmp_path / "study", corpus)
    make(plan)
    said = table.other_rows(result.collect(plan))
    assert bool(said) == bool(differs)
    assert all(f"nine and eight ({differs})" in text for text in said)


def test_probe_results_are_a_table(tmp_path, corpus):
    plan = planned(write_study(tmp_path, _PROBED), tmp_path / "study", corpus)
    make(plan, Pretended(outcomes={"nine.seed1.probes": Outcome(2, "no such thing")}))
    found = result.write(plan)
    agreement, _ = found["variants"][0]["findings"]
    assert (agreement["median"], agreement["lowest"], agreement["runs"]) == (60.5, 60.0, 2)
    assert [variant["runs"] for variant in found["variants"]] == [2, 2]
    text = (plan.workdir / "study.md").read_text(encoding="utf-8")
    assert "| variant | minimal pairs: agreement, % | minimal pairs: order, % |" in text
    assert "| eight | 60.5 (60.0 to 61.0) |" in text and "| guessing | 50 | 50 |" in text
    assert "| nine | 60.0 | 60.0 |" in text
    assert "| nine.seed1.probes | 2 | no such thing |" in text
    # A model may lack the heads for a probe of another model.
    del found["variants"][0]["findings"][0]
    text = table.markdown(found)
    assert "| nine | 60.0 | 60.0 |" in text and "| eight | 60.5 (60.0 to 61.0) | – |" in text


# --- the law --------------------------------------------------------------------------------------

_TRUE = np.array([1.7, 40.0, 0.35, 90.0, 0.3])
# The runs of `bert-jax study scaling`: parameters of the blocks, and tokens.
_SIZES, _TOKENS = (25_472, 100_096, 396_800, 793_344), (1_536_000, 2_560_000, 4_096_000)


def true_loss(parameters, tokens):
    e, a, alpha, b, beta = _TRUE
    return e + a / parameters**alpha + b / tokens**beta


def test_a_law_recovers_the_parameters_of_its_losses():
    n, d = (x.ravel() for x in np.meshgrid(np.geomspace(2e4, 3e6, 4), np.geomspace(5e5, 2e7, 4)))
    exact = law.fit(n, d, true_loss(n, d), resamples=2)
    np.testing.assert_allclose(exact.values, _TRUE, rtol=1e-3)
    noise = np.random.default_rng(0).normal(0, 0.003, len(n))
    noise[3] = 0.3  # a single bad run does not bend the law
    fitted = law.fit(n, d, true_loss(n, d) * np.exp(noise), resamples=10)
    for value, (low, high) in zip(_TRUE, fitted.intervals().values(), strict=True):
        assert low <= value <= high
    with pytest.raises(ValueError, match="needs 6 runs"):
        law.fit(n[:5], d[:5], n[:5])


def test_the_law_of_the_published_runs():
    """docs/science/scaling/study.md, with fewer resamples; E is at its bound."""
    n, d = np.repeat(_SIZES, 3), np.tile(_TOKENS, 4)
    published = [5.895, 5.334, 5.004, 5.133, 4.740, 4.355, 4.860, 4.451, 4.112, 4.906, 4.466, 4.098]
    fitted = law.fit(n, d, published, resamples=10)
    assert fitted.values[0] == 0 and "E" in fitted.not_identified()
    np.testing.assert_allclose(fitted.values[1:], [4255, 0.8273, 63.86, 0.18129], rtol=1e-3)
    assert fitted.error == pytest.approx(0.0058, abs=5e-5)
    text = "\n".join(table.law_section(fitted.as_json(), {}))
    assert text.count("| not identified |") == len(fitted.not_identified())


def test_a_law_is_fitted_to_runs_that_compare(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(law.fit, "__kwdefaults__", {"resamples": 1, "seed": 0})
    found = study.load_study("scaling")
    first, *_ = found.variants
    few = dataclasses.replace(
        first, name="few", overrides=(*first.overrides, "evaluation.num_examples=8")
    )
    found = dataclasses.replace(found, variants=(*found.variants, few))
    plan = plan_study(found, tmp_path / "study", corpus=corpus)

    def loss(run):
        from bert_jax_lab.studies.run import parameters_of

        size, tokens = parameters_of(run.config)["block_parameters"], 0
        for phase in run.config.phases:
            tokens += phase.steps * phase.global_batch_size * phase.sequence_length
        return float(true_loss(size, tokens)) - (run.variant == "few")

    make(plan, Pretended(loss))
    found = result.write(plan)
    np.testing.assert_allclose(list(found["law"]["values"].values()), _TRUE, rtol=0.02)
    text = (plan.workdir / "study.md").read_text(encoding="utf-8")
    assert "few (other validation rows than L2-H32-1500: evaluation.num_examples)" in text
    assert "Points are 13 runs" in text
    assert "![Validation mlm loss over million tokens. A line per run of L2-H32-1500, " in text
    drawn = sorted(path.name for path in (plan.workdir / "figures").iterdir())
    assert drawn == [f"{name}.png" for name in ("law", "loss_over_seconds", "loss_over_tokens")]
