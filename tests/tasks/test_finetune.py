"""Each kind of task from files to scores, on a small encoder; resuming, restarts, refusals."""

import dataclasses
import json
import re
import shutil
import unicodedata
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config import HeadConfig
from bert_jax.config_loader import load_config_json
from bert_jax.data.tasks.conll import Sentence
from bert_jax.data.tasks.squad import Question
from bert_jax.data.tasks.tables import TextRow
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.data.tokenizer.training import train_tokenizer
from bert_jax.errors import Diverged, NonFinite, UsageError
from bert_jax.model import bert, sharding
from bert_jax.objectives.task import TaskObjective
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.registry import TASKS
from bert_jax.tasks import finetune as task_finetune
from bert_jax.tasks import results
from bert_jax.tasks.question_answering import SpanTask
from bert_jax.tasks.task import task_of
from bert_jax.tasks.token_classification import WordTask
from bert_jax.update.layer_rates import layer_rates
from bert_jax.workdir import checkpoint, run_directory
from tests import tiny_tasks
from tests.models import assert_same

_FAST = ["--max-length", "16", "--batch-size", "16", "--learning-rate", "2e-3", "--epochs", "4"]
_FAST += ["--set", "optimizer.bias_correction=true", "--set", "log_every_steps=1"]
_FAST += ["--set", "evaluation.every_steps=0", "--set", "checkpoint.every_steps=30"]


def spec_of(name):
    return TASKS[name].spec


def read_file(spec, path, *, labelled=True, id_column=None, reading=None):
    return task_of(spec, reading=reading).read(str(path), labelled=labelled, id_column=id_column)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return tiny_tasks.encoder(tmp_path_factory.mktemp("encoder") / "hf")


@pytest.fixture(scope="module")
def glue(tmp_path_factory) -> Path:
    return tiny_tasks.sst2(tmp_path_factory.mktemp("glue") / "SST-2")


def finetune(encoder: Path, home: Path, *options: str) -> list[str]:
    return ["finetune", str(encoder), "--workdir", str(home), *options]


@pytest.fixture(scope="module")
def classified(tmp_path_factory, encoder, glue) -> Path:
    """The workdir of a finished classification."""
    home = tmp_path_factory.mktemp("classified") / "run"
    assert main(finetune(encoder, home, "--task", "sst2", "--data", str(glue), *_FAST)) == 0
    return home


def params_of(home: Path):
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        return load_checkpoint(home, mesh=mesh).params


def result_of(home: Path) -> dict:
    return json.loads((home / "result.json").read_text())


# --- every kind learns ---------------------------------------------------------------------------


def test_a_class(classified, capsys):
    result = result_of(classified)
    assert result["scores"]["dev"]["accuracy"] == 1.0 and not result["diverged"]
    rows = [json.loads(line) for line in (classified / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "split" not in row] == list(range(1, 41))
    assert checkpoint.steps(classified) == [40]
    assert len(list((classified / "tensorboard").glob("*/*/events.out.tfevents.*"))) == 2
    text = (classified / "results.md").read_text()
    assert "| 16 | 0.002 | 4 | 1 | 100.0 | 0 |" in text
    summary = json.loads((classified / "results.json").read_text())
    assert summary["metric"] == "accuracy" and summary["best"]["seeds"] == [0]


_NUMBER_OF_A_PAIR = (
    *("--text-column", "left", "--text-column", "right"),
    *("--label-column", "alike", "--regression"),
)


def test_a_number_of_a_pair(tmp_path, encoder):
    files = ["--train", str(tiny_tasks.pairs(tmp_path / "train.jsonl", seed=0))]
    files += ["--dev", str(tiny_tasks.pairs(tmp_path / "dev.jsonl", seed=1, count=40))]
    home = tmp_path / "run"  # columns of a table say which task it is
    assert main(finetune(encoder, home, *files, *_NUMBER_OF_A_PAIR, *_FAST)) == 0
    scores = result_of(home)["scores"]["dev"]
    assert list(scores) == ["spearman", "pearson"] and scores["pearson"] > 0.5


def test_a_tag_for_each_word(tmp_path, encoder, capsys):
    """In files with an index, tags of BILOU, and a column of other tags."""
    files = {"--train": tiny_tasks.tagged(tmp_path / "train.conll", seed=0)}
    files["--dev"] = tiny_tasks.tagged(tmp_path / "dev.conll", seed=1, count=40)
    for path in files.values():
        text = path.read_text().replace("I-animal", "L-animal").replace("B-place", "U-place")
        path.write_text("# a\n" + re.sub(r"(\S+) (\S+)", r"7\t\1\t\2\tB-x", text))
    command = ["--task", "ner", *(str(each) for pair in files.items() for each in pair), *_FAST]
    home, columns = tmp_path / "run", ["--columns", "id,word,tag,x", "--text-column", "word"]
    assert main(finetune(encoder, home, *command)) == 2
    said = capsys.readouterr().err
    assert "4 columns ('7', " in said and "--columns" in said and "--label-column" in said
    assert main(finetune(encoder, home, *command, *columns, "--label-column", "tag")) == 0
    assert "tags in the scheme BILOU (B-, I-, L- for the first, inner" in capsys.readouterr().err
    assert result_of(home)["scores"]["dev"]["f1"] > 0.9
    config = json.loads((home / "config.json").read_text())["config"]
    labels = ["O", *(f"{p}-{kind}" for kind in ("animal", "place") for p in "BILU")]
    assert config["head"]["labels"] == labels
    assert main(["predict", str(home), "--input", str(files["--dev"])]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = [line.split("\t") for line in files["--dev"].read_text().splitlines() if "\t" in line]
    assert [word for each in found for word in each["words"]] == [row[1] for row in rows]
    tags = [tag for each in found for tag in each["tags"]]
    assert np.mean([tag == row[2] for tag, row in zip(tags, rows, strict=True)]) > 0.9


def test_an_answer_in_a_paragraph(tmp_path, encoder, capsys):
    files = ["--train", str(tiny_tasks.questions(tmp_path / "train.json", seed=0))]
    files += ["--dev", str(tiny_tasks.questions(tmp_path / "dev.json", seed=1, count=24))]
    home = tmp_path / "run"
    # Windows of the paragraph: 20 tokens hold the question and one of its sentences.
    windows = ["--max-length", "20", "--doc-stride", "4", "--max-answer-length", "2"]
    command = finetune(encoder, home, "--task", "squad", *files, *_FAST, *windows)
    assert main([*command, "--restarts", "0", "--epochs", "2"]) == 0
    rows = [json.loads(line) for line in (home / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3
    scores = result_of(home)["scores"]["dev"]
    assert list(scores) == ["exact_match", "f1"]
    assert f"dev f1 {scores['f1']:.4f} %" in capsys.readouterr().err


def test_rows_that_do_not_divide_by_the_devices_are_scored(tmp_path, encoder, glue, classified):
    """As three or six devices do not divide the 64 rows that are scored at a time."""
    size = jax.device_count() + 1
    assert size > 2, "one device divides everything"
    task = ["--task", "sst2", "--data", str(glue), *_FAST]
    options = ["--set", f"evaluation.batch_size={size}"]
    assert main(finetune(encoder, tmp_path / "run", *task, *options)) == 0
    assert result_of(tmp_path / "run")["scores"] == result_of(classified)["scores"]


def test_a_finished_run_that_went_back_is_trained_again(tmp_path, encoder, glue, classified):
    """It said the scores of the model that is set aside, and to predict with the other one."""
    home = tmp_path / "run"
    kept = ["--set", "checkpoint.every_steps=10", "--set", "checkpoint.keep_last=4"]
    command = finetune(encoder, home, "--task", "sst2", "--data", str(glue), *_FAST, *kept)
    assert main(command) == 0
    assert main(["checkpoints", "rollback", str(home), "--step", "10"]) == 0
    assert checkpoint.steps(home) == [10]
    assert main(command) == 0
    assert max(checkpoint.steps(home)) == 40
    assert_same(params_of(home), params_of(classified))
    shutil.rmtree(home / "checkpoints")  # to have room: the scores are known
    assert main(command) == 0 and not (home / "checkpoints").exists()


def sure_of(found) -> np.ndarray:
    """The outputs of a model that gives the labels of the first row."""
    outputs = np.zeros((*found.features.input_ids.shape, 2), np.float32)
    outputs[0, found.features.labels[0], [0, 1]] = 9.0
    return outputs


@pytest.mark.parametrize("task", ["squad", "squad2"])
def test_right_spans_give_right_answers(tmp_path, encoder, task):
    """Outputs that are high where the labels are, through windows and candidates, score 100."""
    path = tiny_tasks.questions(tmp_path / "a.json", seed=0, unanswerable=task == "squad2")
    spec = dataclasses.replace(spec_of(task), doc_stride=4)
    rows = read_file(spec, path)
    found = task_of(spec).encode(rows, load_tokenizer(encoder), length=20, labelled=True)
    outputs = np.zeros((*found.features.input_ids.shape, 2), np.float32)
    for end in range(2):
        labels = found.features.labels[:, end]
        # A window that does not have the answer is less sure of that than one that has it.
        outputs[np.arange(len(labels)), labels, end] = np.where(labels == 0, 5.0, 9.0)
        outputs[:, 0, end] = np.where(labels == 0, 5.0, -9.0)
    scores = task_of(spec).score(found, outputs)
    # Where there is an answer, its ends are 9 and [CLS] is -9: a margin of -36.
    if task == "squad2":
        assert scores.pop("best_f1_threshold") == -36.0
    assert set(scores.values()) == {100.0}
    silent = task_of(spec).score(found, np.zeros_like(outputs))
    assert silent["exact_match"] < 50
    if task == "squad2":
        never = task_of(dataclasses.replace(spec, null_threshold=-99.0))
        assert never.score(found, outputs)["answerable_f1"] == 0.0


def test_an_answer_has_no_white_space_around_it(tmp_path, encoder):
    """Some tokenizers count the space before a word to its sub-word."""
    path = tiny_tasks.questions(tmp_path / "a.json", seed=0, unanswerable=False)
    spec = spec_of("squad")
    rows = read_file(spec, path)
    found = task_of(spec).encode(rows, load_tokenizer(encoder), length=32, labelled=True)
    draw = np.random.default_rng(0)
    outputs = draw.normal(size=(*found.features.input_ids.shape, 2)).astype(np.float32)
    plain = task_of(spec).predictions(found, outputs)
    characters = found.alignment.characters.copy()
    characters[..., 0] -= characters[..., 0] > 0  # words of these texts have a space before them
    places = dataclasses.replace(found.alignment, characters=characters)
    wide = task_of(spec).predictions(dataclasses.replace(found, alignment=places), outputs)
    assert wide == plain


@pytest.mark.parametrize("answer", ["Jose\u0301", "\u0917\u0941\u0930\u0941", "\u0e14\u0e35"])
def test_an_answer_keeps_the_marks_of_its_last_letter(encoder, answer):
    """A vocabulary without accents has no token for them."""
    context = f"the cat saw {answer}."
    rows = [Question("row 0", "0", "who?", context, answers=(answer,), starts=(12,))]
    task = task_of(spec_of("squad"))
    found = task.encode(rows, load_tokenizer(encoder), length=32, labelled=True)
    assert task.score(found, sure_of(found))["exact_match"] == 100.0


@pytest.mark.parametrize(("answer", "size"), [("\uc11c\uc6b8\uc740", 23), ("\uff76\uff9e", 20)])
def test_an_answer_has_the_whole_of_its_last_letter(answer, size):
    """SentencePiece composes it, and says that the token stands for the letter's first part."""
    answer = unicodedata.normalize("NFD", answer)
    texts = [f"{answer} and {answer} the cat saw {answer} {word}" for word in ("sun", "moon")] * 20
    trained = train_tokenizer("sentencepiece", texts, vocab_size=size, lowercase=True)
    context = f"the cat saw {answer} and the moon"
    rows = [Question("row 0", "0", "who?", context, answers=(answer,), starts=(12,))]
    task = task_of(spec_of("squad"))
    found = task.encode(rows, trained, length=48, labelled=True)
    assert task.predictions(found, sure_of(found))[0]["prediction"] == answer


# --- one run, many ways --------------------------------------------------------------------------


def test_a_run_that_was_interrupted_ends_with_the_same_bits(tmp_path, encoder, glue, classified):
    home = tmp_path / "run"
    command = finetune(encoder, home, "--task", "sst2", "--data", str(glue), *_FAST)
    # As if it had been stopped between its checkpoints.
    keep = ["--set", "checkpoint.keep_last=9", "--fit-memory"]
    assert main([*command, *keep]) == 0
    assert checkpoint.steps(home) == [30, 40]
    # The scores at the end are not those of an earlier step.
    export = ["export", str(home / "checkpoints" / "30")]
    assert main([*export, "--output-dir", str(tmp_path / "hf")]) == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "Step 30 of 40" in card and "accuracy" not in card
    (home / "result.json").unlink()
    (home / "checkpoints" / "40").rename(tmp_path / "40")
    assert main([*command, *keep]) == 0
    assert_same(params_of(home), params_of(classified))
    # Finished, it is only reported, however its checkpoint is written; changed, it is refused.
    there = str(encoder.parent / ".." / encoder.parent.name / encoder.name)
    assert main([*(there if word == str(encoder) else word for word in command), *keep]) == 0
    assert main([*command, *keep, "--learning-rate", "1e-3"]) == 3


def test_the_best_checkpoint_is_that_of_the_first_metric(tmp_path, encoder, glue, capsys):
    home = tmp_path / "run"
    command = finetune(encoder, home, "--task", "sst2", "--data", str(glue), *_FAST)
    assert main([*command, "--set", 'hooks=[{"kind": "best_checkpoint", "figure": "loss"}]']) == 2
    assert "no metric 'loss'; it has accuracy" in capsys.readouterr().err
    assert not (home / "metrics.jsonl").exists()
    each = ["evaluation.every_steps=10", 'hooks=["best_checkpoint"]']
    assert main([*command, *(option for field in each for option in ("--set", field))]) == 0
    rows = [json.loads(line) for line in (home / "metrics.jsonl").read_text().splitlines()]
    scores = {row["step"]: row["accuracy"] for row in rows if row.get("split") == "dev"}
    best = max(scores, key=lambda step: (scores[step], -step))
    assert len(scores) > 1 and best in checkpoint.steps(home)
    events = [json.loads(line) for line in (home / "events.jsonl").read_text().splitlines()]
    *_, named = [event for event in events if event["event"] == "best"]
    assert (named["step"], named["figure"]) == (best, "accuracy")


def test_a_fine_tuned_encoder_goes_on_to_another_task(tmp_path, classified, glue):
    """Intermediate training: the encoder is kept, the head is not."""
    home = tmp_path / "run"
    rows = ["--train", str(glue / "train.tsv"), "--dev", str(glue / "dev.tsv")]
    options = ["--text-column", "sentence", "--freeze-layers", "2"]
    options += ["--epochs", "1", "--restarts", "0"]
    command = finetune(classified, home, "--task", "text", *rows, *options, "--max-length", "16")
    assert main([*command, "--learning-rate", "1e-2"]) == 0
    before, after = params_of(classified), params_of(home)
    assert_same(before["encoder"], after["encoder"])  # all of it was held
    for part in ("pooler", "sequence_classifier"):
        old, new = (jax.tree.leaves(p[part])[-1] for p in (before, after))
        assert not np.allclose(old, new)


def test_seeds_are_summed_up_and_failed_ones_begin_again(tmp_path, encoder, glue, capsys):
    """With labels that say nothing a run learns nothing: it is tried again, and counted."""
    folder = tmp_path / "glue"
    folder.mkdir()
    for name in ("train", "dev"):
        lines = (glue / f"{name}.tsv").read_text().splitlines()[1:]
        rows = [f"{line.split(chr(9))[0]}\t{int(i % 8 == 0)}" for i, line in enumerate(lines)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    home = tmp_path / "runs"
    command = finetune(encoder, home, "--task", "sst2", "--data", str(folder))
    command += ["--seeds", "2", "--restarts", "1", "--epochs", "1", "--learning-rate", "1e-6"]
    command += ["--batch-size", "16"]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "seed 0 diverged (it predicts no better than" in said.err
    assert "seed 1000 diverged" in said.err and "no restarts left" in said.err
    assert "no run predicts better" in said.out and "predict with" not in said.out
    setting = json.loads((home / "results.json").read_text())["best"]
    assert setting["divergent"] == 4 and setting["seeds"] == [1000, 1001]
    for directory in setting["directories"]:
        assert Path(directory).name == "restart-1"
        assert result_of(Path(directory).parent)["diverged"]
        # The default, 128, is more than the model has.
        assert load_config_json(Path(directory) / "config.json").phases[0].sequence_length == 48
    assert main(command) == 0  # everything is there already
    capsys.readouterr()
    assert main(["export", setting["directories"][0], "--output-dir", str(tmp_path / "hf")]) == 0
    assert "restart-1 diverged: it predicts no better than" in capsys.readouterr().err


def test_a_restart_that_was_interrupted(tmp_path, encoder, glue, monkeypatch):
    """The same command goes on with the restart, without another look at the first attempt."""
    home, writes = tmp_path / "run", []
    write_config = run_directory.write_config
    command = finetune(encoder, home, "--task", "sst2", "--data", str(glue), *_FAST)
    command += ["--epochs", "1", "--restarts", "1"]

    def writing(*arguments, **facts):
        writes.append(arguments)
        if len(writes) == 2:
            raise KeyboardInterrupt
        write_config(*arguments, **facts)

    monkeypatch.setattr(task_finetune, "_has_diverged", lambda *_: True)
    monkeypatch.setattr(run_directory, "write_config", writing)
    assert main(command) != 0 and not (home / "restart-1" / "config.json").exists()
    assert main(command) == 0 and len(writes) == 3
    assert [result_of(d)["seed"] for d in (home, home / "restart-1")] == [0, 1000]


def test_a_loss_that_is_no_number_is_restarted(tmp_path, encoder, glue, capsys, monkeypatch):
    """Its result has no scores, and is not computed again."""
    calls, train_job = [], task_finetune.train_job

    def failing(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 1:
            arguments[1].create()
            raise NonFinite("the loss is nan")
        return train_job(*arguments, **options)

    monkeypatch.setattr(task_finetune, "train_job", failing)
    home = tmp_path / "run"
    command = finetune(encoder, home, "--task", "sst2", "--data", str(glue), *_FAST)
    command += ["--epochs", "1", "--restarts", "1"]
    for _ in range(2):
        assert main(command) == 0
        assert "seed 0 diverged (the loss is nan)" in capsys.readouterr().err
    assert len(calls) == 2 and result_of(home)["scores"] == {}
    summary = json.loads((home / "results.json").read_text())
    assert summary["best"]["divergent"] >= 1 and summary["directory"].endswith("restart-1")
    # No verb uses its parameters, which may not be finite.
    assert main(["predict", str(home), "--input", str(glue / "dev.tsv")]) == 8
    assert "run diverged: the loss is nan; use the run that" in capsys.readouterr().err


def test_no_run_with_a_score_is_an_error():
    run = {"batch_size": 16, "learning_rate": 1.0, "epochs": 2.0, "seed": 0, "attempts": 3,
           "diverged": True, "directory": "x", "scores": {}, "reason": "nan"}  # fmt: skip
    with pytest.raises(Diverged, match="all 2 runs of sst2 diverged: nan; fine-tune again"):
        results.summarise(spec_of("sst2"), [run, run | {"seed": 1}])


def test_the_first_metric_of_a_task_decides_and_runs_without_a_score_are_counted():
    """The order of the scores in a record does not matter."""

    def run(seed, **scores):
        return {
            "batch_size": 16, "learning_rate": 1.0, "epochs": 2.0, "seed": seed, "attempts": 1,
            "diverged": not scores, "examples_per_second": 1.0, "directory": f"seed {seed}",
            "scores": scores and {"dev": scores},
        }  # fmt: skip

    runs = [run(0), run(1, exact_match=70.0, f1=80.0), run(2, exact_match=69.0, f1=81.0)]
    summary = results.summarise(spec_of("squad"), runs)
    assert summary["metric"] == "f1" and summary["directory"] == "seed 2"
    best = summary["best"]
    assert best["scores"]["f1"]["median"] == 80.5
    assert (best["seeds"], best["without_scores"], best["divergent"]) == ([0, 1, 2], 1, 1)


def test_chance_is_the_best_of_all_constant_answers():
    """For QQP's F1 that is yes everywhere, however rare yes is."""
    rows = [TextRow(f"line {i}", ("a", "b"), str(int(i < 3)), str(i)) for i in range(8)]
    assert task_of(spec_of("qqp")).majority_baseline(rows) == pytest.approx(2 * 3 / (3 + 8))


def test_chance_where_all_rows_have_one_answer():
    """Nothing is better than that answer: a run that gives it has not failed."""
    yes, no = (TextRow("line 1", ("a",), label, "0") for label in "10")
    without = Question("q", "q", "who?", "A cat.", (), ())
    answered = dataclasses.replace(without, id="r", answers=("cat",), starts=(2,))
    outside = Sentence("line 1", ("a", "b"), ("O", "O"))
    inside = Sentence("line 1", ("a", "b"), ("O", "B-x"))
    for task, alike, other, chance in (
        ("sst2", yes, no, 0.5),
        ("cola", yes, no, 0.0),
        ("stsb", yes, no, 0.0),
        ("squad2", without, answered, 50.0),
        ("ner", outside, inside, 0.0),
    ):
        found = task_of(spec_of(task))
        assert found.majority_baseline([alike, alike]) == -np.inf
        assert found.majority_baseline([alike, other]) == chance, task


def test_what_comes_of_it_can_be_exported(tmp_path, classified, glue):
    assert main(["export", str(classified), "--output-dir", str(tmp_path / "hf")]) == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    for name in ("train", "dev"):
        count = len((glue / f"{name}.tsv").read_text().splitlines()) - 1
        assert f"- {name}: {count:,} rows" in card
    assert f"- sources: {glue.name}\n" in card and str(glue) not in card
    assert "fine-tuned on sst2" in card and "| dev | accuracy | 1.0000 |" in card
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "0", "1": "1"}


# --- prediction and vectors ----------------------------------------------------------------------


def test_predictions_are_those_that_were_scored(tmp_path, classified, glue, capsys):
    command = ["predict", str(classified), "--input", str(glue / "dev.tsv")]
    assert main(command) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    gold = [line.split("\t")[1] for line in (glue / "dev.tsv").read_text().splitlines()[1:]]
    assert [record["label"] for record in records] == gold
    assert all(sum(r["probabilities"].values()) == pytest.approx(1) for r in records)
    table = tmp_path / "table.csv"
    table.write_text("tweet,sentence\nx7,the cat is fine\nx9,\u2603\n")
    named = ["predict", str(classified), "--input", str(table), "--id-column"]
    assert main([*named, "tweet"]) == 0
    printed = capsys.readouterr()
    assert [json.loads(line)["id"] for line in printed.out.splitlines()] == ["x7", "x9"]
    assert "% of the tokens of the text are [UNK]; the vocabulary lacks" in printed.err
    assert main([*named, "number"]) == 2
    assert "line 1: no column 'number', only tweet, sentence" in capsys.readouterr().err
    output = tmp_path / "submission"
    command = ["predict", str(classified), "--data", str(glue)]
    assert main([*command, "--output-dir", str(output)]) == 0
    expected = [str(label) for _, label in tiny_tasks.sentences(9, seed=7)]
    lines = [line.split("\t") for line in (output / "SST-2.tsv").read_text().splitlines()]
    assert lines == [["index", "prediction"], *([str(i), x] for i, x in enumerate(expected))]


def test_a_file_to_predict_is_read_without_its_labels(tmp_path):
    """CoLA's rows with and without a line of names; a wrong answer_start in a SQuAD file."""

    bare = tmp_path / "dev.tsv"
    bare.write_text("gj04\t1\t\tThe cat sat.\n")
    named = tmp_path / "test.tsv"
    named.write_text("index\tsentence\n0\tThe cat sat.\n")
    for path in (bare, named):
        (row,) = read_file(spec_of("cola"), path, labelled=False)
        assert row.texts == ("The cat sat.",)
    question = {"id": "1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 99}]}
    paragraph = {"context": "Ada slept.", "qas": [question]}
    squad = tmp_path / "squad.json"
    squad.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    (row,) = read_file(spec_of("squad"), squad, labelled=False)
    assert row.answers == ()
    with pytest.raises(UsageError, match="answer_start 99"):
        read_file(spec_of("squad"), squad)


def test_vectors(tmp_path, encoder, capsys):
    # A form feed and a line separator end no line.
    text = "the cat lives \x0cin rome .\n\nan\u2028owl\n"
    (tmp_path / "texts.txt").write_text(text, encoding="utf-8")
    command = ["embed", str(encoder), "--input", str(tmp_path / "texts.txt")]
    found = {}
    for pooling in ("mean", "cls", "none"):
        output = tmp_path / f"{pooling}.npz"
        options = ["--layers=0,1,-1", "--pooling", pooling, "--max-length", "16"]
        assert main([*command, "--output-file", str(output), *options]) == 0
        found[pooling] = np.load(output)
    tokens, offsets = found["none"]["vectors"], found["none"]["offsets"]
    assert offsets.tolist() == [0, 8, 12] and tokens.shape == (12, 96)
    assert all(arrays["lines"].tolist() == [1, 3] for arrays in found.values())
    for row in range(2):
        of_row = tokens[offsets[row] : offsets[row + 1]]
        np.testing.assert_allclose(found["mean"]["vectors"][row], of_row.mean(axis=0), atol=1e-6)
        np.testing.assert_array_equal(found["cls"]["vectors"][row], of_row[0])
    wrong = [*command, "--output-file", str(tmp_path / "x.npz"), "--max-length", "16"]
    assert main([*wrong, "--layers", "3"]) == 2
    assert "--layers 3: the model has layers 1 to 2, and 0" in capsys.readouterr().err
    assert not (tmp_path / "x.npz").exists()


# --- the step ------------------------------------------------------------------------------------


def electras_rates(decay: float, layers: int) -> dict[str, float]:
    """google-research/electra model/optimization.py, `_get_layer_lrs`, for a rate of 1."""
    depths = {"embeddings": 0, "task_specific": layers + 2}
    depths |= {f"layer_{layer}": layer + 1 for layer in range(layers)}
    return {name: decay ** (layers + 2 - depth) for name, depth in depths.items()}


@pytest.mark.parametrize(("decay", "layers"), [(0.8, 3), (0.9, 24), (1.0, 2)])
def test_rates_fall_from_layer_to_layer_as_electras(decay, layers):
    head = HeadConfig(parts=("pooler", "sequence_classifier"), labels=("a", "b"))
    model = dataclasses.replace(tiny_tasks.MODEL, num_hidden_layers=layers, embedding_size=8)
    params = bert.abstract_params(model, head)
    theirs = electras_rates(decay, layers)
    rates = layer_rates(params, decay=decay, frozen_layers=0)
    assert set(jax.tree.leaves([rates["pooler"], rates["sequence_classifier"]])) == {1.0}
    assert theirs.pop("task_specific") == 1.0
    assert {name: set(jax.tree.leaves(part)) for name, part in rates["encoder"].items()} == {
        name: {rate} for name, rate in theirs.items()
    }
    held = layer_rates(params, decay=decay, frozen_layers=1)["encoder"]
    assert set(jax.tree.leaves([held["embeddings"], held["layer_0"]])) == {0.0}
    assert held["layer_1"] == rates["encoder"]["layer_1"]


def test_rows_of_weight_zero_count_for_nothing():
    logits = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    batch = {"labels": np.array([0, 1, 2, 0]), "weights": np.array([1.0, 1.0, 1.0, 0.0])}
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        sums = TaskObjective(HeadConfig(parts=("pooler", "sequence_classifier"))).sums(
            {"sequence_logits": jax.numpy.asarray(logits)}, batch
        )
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert float(sums["task_loss"]) == pytest.approx(
        -np.log(shares[range(3), range(3)]).sum(), rel=1e-5
    )
    assert float(sums["task_count"]) == 3


# --- what is refused -----------------------------------------------------------------------------


def _broken(tmp_path: Path, glue: Path, name: str, line: str) -> Path:
    folder = tmp_path / "broken"
    folder.mkdir()
    for split in ("train", "dev"):
        text = (glue / f"{split}.tsv").read_text()
        (folder / f"{split}.tsv").write_text(text + (line if split == name else ""))
    return folder


def test_a_label_that_is_none_is_named_and_nothing_is_written(tmp_path, encoder, glue, capsys):
    folder = _broken(tmp_path, glue, "dev", "the cat .\tperhaps\n")
    home = tmp_path / "run"
    assert main(finetune(encoder, home, "--task", "sst2", "--data", str(folder), *_FAST)) == 2
    error = capsys.readouterr().err
    assert f"{folder}/dev.tsv, line 42: label 'perhaps' is not one of 0, 1" in error
    assert error.count("\n") == 1 and not home.exists()


def test_half_a_surrogate_pair_of_a_row_is_a_replacement_character():
    """As in the files of the tasks: a tokenizer reads no half."""
    words = WordTask.row(None, "the \ud83d cat", number=0)  # type: ignore[arg-type]
    assert words.words == ("the", "\ufffd", "cat")
    asked = {"question": "who \ud83d?", "context": "\ud83d sat"}
    question = SpanTask.row(None, asked, number=0)  # type: ignore[arg-type]
    assert (question.question, question.context) == ("who \ufffd?", "\ufffd sat")


@pytest.mark.parametrize("score", ["nan", "1e39", ""])
def test_a_score_that_is_no_number_is_named(tmp_path, encoder, capsys, score):
    train = tiny_tasks.pairs(tmp_path / "train.jsonl", seed=0)
    dev = tmp_path / "dev.jsonl"
    dev.write_text(json.dumps({"left": "cat", "right": "dog", "alike": score}) + "\n")
    home = tmp_path / "run"
    files = ["--train", str(train), "--dev", str(dev)]
    assert main(finetune(encoder, home, "--task", "text", *files, *_NUMBER_OF_A_PAIR, *_FAST)) == 2
    wrong = f", line 1: score {score!r} is not a finite number" if score else (
        " has no rows: none of its 1 has a label"
    )  # fmt: skip
    assert f"{dev}{wrong}" in capsys.readouterr().err
    assert not home.exists()


# The options, and the message.
_REFUSED = {
    "--task glue": "task is 'glue'; choose one of cola",
    "--task sst2 --max-length 16": "--task sst2 needs --data",
    "--task ner --max-length 16": "--task ner needs --train FILE and, optionally, --dev FILE",
    "--task text": "--task text takes --text-column COLUMN once or twice",
    "--task squad --text-column x": "squad has no --text-column",
    "--task ner --regression": "--regression is for --task text",
    "--task ner --train x --quoting none --max-length 16": (
        "--quoting: files of --task ner have columns separated by tabs or spaces"
    ),
    "--task sst2 --max-length 16 --data nowhere": "nowhere has no train.tsv",
    "--task sst2 --data . --epochs 0": "--epochs 0.0",
    "--task sst2 --data . --layer-decay 2": "--layer-decay 2.0",
    "--task sst2 --data {glue} --max-length 16 --set data.num_workers=3": (
        "--set data.num_workers: only pre-training has this option"
    ),
    "--task sst2 --data {glue} --max-length 16 --set model.vocab_size=32": (
        "--set model.vocab_size: the checkpoint decides the model"
    ),
    "--task sst2 --data {glue} --max-length 16 --set seed=5": "--set seed: use --seed",
    "--task sst2 --data {glue} --max-length 16 --set optimizer.learning_rate=1": (
        "--set optimizer.learning_rate: use --learning-rate"
    ),
    "--task sst2 --data {glue} --max-length 16 --freeze-layers 3": (
        "--freeze-layers 3: the model has only 2 layers"
    ),
    "--task sst2 --data {glue} --max-length 49": "--max-length 49: checkpoint",
    "--task sst2 --data {glue} --max-length 1": "8 to 48 tokens",
    "--task sst2 --data {glue} --restarts -1": "--restarts -1",
    "--task sst2 --data {glue} --max-length 16 --train x.tsv": (
        "--task sst2 reads its rows from --data"
    ),
    "--task ner --data {glue} --max-length 16 --train x --dev y": (
        "--task ner: use --train FILE and --dev FILE instead of --data"
    ),
    "--task squad --doc-stride 0": "--doc-stride 0",
}


@pytest.mark.parametrize("options", _REFUSED)
def test_wrong_arguments_are_named(tmp_path, encoder, glue, capsys, options):
    given = [option.replace("{glue}", str(glue)) for option in options.split()]
    assert main(finetune(encoder, tmp_path / "run", *given)) == 2
    assert _REFUSED[options] in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "task, wrong, message",
    [
        ("sst2", {"truncation": "head"}, "`truncation` head: must be one of longest_first"),
        ("ner", {"tag_scheme": "IOE1"}, "`tag_scheme` IOE1: must be one of IOB2, IOB1"),
        ("squad", {"doc_stride": 0}, "`doc_stride` 0: must be at least 1"),
        ("squad2", {"null_threshold": float("nan")}, "`null_threshold` nan"),
        ("sst2", {"metrics": ()}, "task sst2: metrics is empty"),
        ("sst2", {"metrics": ("auc",)}, "metrics has 'auc', but a task of kind classification"),
        ("mnli", {"metrics": ("accuracy", "f1")}, "'f1', .* with 3 labels supports accuracy"),
        ("stsb", {"metrics": ("f1",)}, "'f1', but a task of kind regression supports pearson"),
        ("ner", {"metrics": ("accuracy",)}, "'accuracy', but a task of kind tokens supports f1"),
        ("squad", {"metrics": ("rouge",)}, "'rouge', but a task of kind spans supports f1"),
    ],
)
def test_a_task_that_cannot_be_is_refused_before_it_is_learned(task, wrong, message):
    with pytest.raises(UsageError, match=message):
        task_of(dataclasses.replace(spec_of(task), **wrong))


def test_other_training_rows_are_another_run(tmp_path, encoder, glue, classified, capsys):
    """As many rows and the same labels: only what is trained on differs. Few are warned of."""
    other, before = shutil.copytree(glue, tmp_path / "SST-2"), result_of(classified)
    for name, count in (("train", 160), ("dev", 24)):
        rows = [f"{text}\t{label}" for text, label in tiny_tasks.sentences(count, seed=3)]
        (other / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    command = finetune(encoder, classified, "--task", "sst2", "--data", str(other), *_FAST)
    assert main(command) == 3
    said = capsys.readouterr().err
    assert "dev has only 24 rows" in said and "data:" in said
    assert result_of(classified) == before


def test_several_runs_are_not_put_into_a_single_ones_workdir(classified, encoder, glue, capsys):
    before = (classified / "results.md").read_bytes(), sorted(classified.iterdir())
    command = finetune(encoder, classified, "--task", "sst2", "--data", str(glue), *_FAST)
    assert main([*command, "--seeds", "2"]) == 2
    assert f"--workdir {classified} has a single run" in capsys.readouterr().err
    assert before == ((classified / "results.md").read_bytes(), sorted(classified.iterdir()))
