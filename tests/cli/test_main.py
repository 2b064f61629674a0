"""Errors of the command line: one line on stderr, and the documented exit code."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax import __version__
from bert_jax.__main__ import main
from bert_jax.cli import output
from bert_jax.config import OptimizerConfig, PhaseConfig
from bert_jax.progress import note
from tests import tiny_corpus
from tests.limits import HUNG
from tests.tiny_corpus import tiny_config

_SHORT = (PhaseConfig(sequence_length=32, steps=4, global_batch_size=16, max_predictions=5),)


@pytest.fixture
def refused(capsys):
    """Runs a command that must fail; returns its error message."""

    def run(code: int, *arguments) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == code
        out, err = capsys.readouterr()
        assert out == ""
        lines = [line for line in err.splitlines() if "error" in line.lower()]
        assert len(lines) == 1, err
        assert err.endswith(lines[0] + "\n"), "the error is the last line"
        start = f"bert-jax {arguments[0]}: error: "
        assert lines[0].startswith(start)
        assert "Traceback" not in err
        return lines[0].removeprefix(start)

    return run


@pytest.fixture
def config(tmp_path) -> Path:
    return tiny_corpus.write_config(tmp_path / "tiny.json", tiny_config())


@pytest.fixture(scope="module")
def other_corpus(tmp_path_factory) -> Path:
    """The same stories, cut into other sub-words."""
    directory = tmp_path_factory.mktemp("other")
    source = tiny_corpus.write(directory / "stories.txt")
    output = ["--output-dir", str(directory / "c"), "--workers", "1"]
    options = ["--vocab-size", "120", "--validation-fraction", "0.2"]
    assert main(["prepare", "--source", str(source), *output, *options]) == 0
    return directory / "c"


# --- messages of the library ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("`init_from` x has no mlm", "--init-from x has no mlm"),
        ("needs an `object`", "needs an `object`"),
        ("it does with set compute.remat=full", "it does with --set compute.remat=full"),
        ("use --set model.x=1", "use --set model.x=1"),
        ("vocab_size: 2; set the config to match", "vocab_size: 2; set the config to match"),
        ("override a b: must be c", "--set a b: must be c"),
        ("cannot override seed: no", "cannot override seed: no"),
    ],
)
def test_messages_name_options(said, shown, capsys):
    options = {"init_from": "--init-from"}
    assert output.in_options(said, options) == shown
    output.show_messages(options)
    note(said)
    assert capsys.readouterr() == ("", shown + "\n")


def test_an_assignment_without_a_value(refused):
    assert refused(2, "config", "show", "bert_base", "--set", "a b").startswith(
        "--set a b: write it as"
    )


# --- prepare -------------------------------------------------------------------------------------


def test_a_missing_column(tmp_path, refused):
    """Neither verb proposes to skip the file."""
    source, there = tmp_path / "a.csv", [f"c{n}" for n in range(12)]
    source.write_text("\n".join([",".join(there)] * 3))
    said = refused(2, "prepare", "--source", source, "--output-dir", tmp_path / "c", "--workers", 1)
    assert said.endswith("only c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, .... "
                         "Name the column of the text with --text-column")  # fmt: skip
    said = refused(
        2, "mine", tmp_path, "--input", source, "--text-column", "q", "--text-column", "p",
        "--output-file", tmp_path / "m.jsonl",
    )  # fmt: skip
    assert "c9, .... Name one of these with --text-column; if the first line" in said


# --- configs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override, message",
    [
        ("phases.0.sequence_length=64", "longer than the position table"),
        ("model.vocab_size=200", "token ids up to 226, but model.vocab_size is 200"),
        ("phases.0.global_batch_size=15", "batch_size is 15, which is not a multiple of 2"),
        (
            "optimizer.gradient_accumulation_steps=8",
            "of 16 (devices that share a batch, times optimizer.gradient_accumulation_steps); "
            "--set optimizer.gradient_accumulation_steps=4, or use a batch size of 16",
        ),
        ("mesh.fsdp=3", "1 x 3 x 1, but there are 2 devices"),
    ],
)
def test_bad_config(tmp_path, config, corpus, refused, override, message):
    said = refused(
        2, "pretrain", config, "--corpus", corpus, "--workdir", tmp_path / "w", "--set", override
    )
    assert message in said
    assert not (tmp_path / "w").exists(), "nothing was begun"


@pytest.mark.parametrize("steps", ["20", "20:", "20:10", "a:b", "-1:5"])
def test_bad_profile_steps(tmp_path, config, corpus, refused, steps):
    arguments = ("--workdir", tmp_path / "w", f"--profile-steps={steps}")
    said = refused(2, "pretrain", config, "--corpus", corpus, *arguments)
    assert f"--profile-steps {steps}: write it as A:B" in said


def test_show_prints_the_config(config, capsys):
    assert main(["config", "show", str(config), "--set", "phases.1.steps=7"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["phases"][1]["steps"] == 7 and shown["model"]["vocab_size"] == 240


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("prepear", "there is no verb 'prepear', did you mean 'prepare'?"),
        ("train", "there is no verb 'train', did you mean 'pretrain'?"),
        ("help configs", "there is no verb 'configs', did you mean 'config list'?"),
        ("xyzzy", "there is no verb 'xyzzy' ("),
        ("pretrain", "required: CONFIG, --corpus, --workdir ('bert-jax pretrain --help'"),
        ("prepare --output-dir x", "required: --source ("),
        ("pretrain c --corpus c --workdir w --zzz", "unrecognized arguments: --zzz ("),
        ("pretrain --max_steps 100", "no --max_steps: write --steps 100"),
        ("pretrain c --corpus c --workdir w --lr=1e-4", "write --learning-rate 1e-4"),
        ("pretrain --batch_size 8", "write --batch-size 8"),
        ("pretrain --num_train_epochs 3", "no --num_train_epochs: write --steps N ("),
        ("pretrain c --resume", "no --resume: write the same command"),
        ("pretrain --corpsu w", "Did you mean '--corpus'?"),
        ("finetune --steps 9", "write --epochs N"),
        ("finetune --learning-rate nan", "--learning-rate: 'nan' is not a finite number"),
        ("prepare --input a.txt", "write --source a.txt"),
        ("evaluate --model runs/base", "write runs/base without --model"),
        ("pretrain c --corpus gs://b/c --workdir w", "--corpus: gs://b/c is an address, but must"),
        ("embed m --output-file gs://b/v.npz", "--output-file: gs://b/v.npz is an address, but"),
        ("pretrain c --corpus c --workdir=", "argument --workdir: nothing is named"),
        ("average a b --output-dir=", "argument --output-dir: nothing is named"),
        ("pretrain --wandb", "write --tracker wandb"),
        ("pretrain --fp16", "write --set compute.dtype=bfloat16"),
        ("embed --bf16", "write the same command without this option: only training"),
        ("finetune --do_train", "there is no --do_train: write the same command without"),
    ],
)
def test_usage(typed, said, capsys):
    """Two lines: the usage with the required arguments, and the fix."""
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    usage, error = err.splitlines()
    verb = typed.split()[0] if "no verb" not in said else ""
    assert usage.startswith(f"usage: bert-jax {verb}".rstrip()) and out == ""
    assert error.startswith(f"bert-jax {verb}".rstrip() + ": error: ") and said in error


def test_options_of_a_runner_without_the_dashes_before_them(capsys):
    words = ["--source", "gs://b/t", "--output-dir", "gs://b/c"]
    words += ["--project", "mine", "--region", "here"]
    with pytest.raises(SystemExit) as ended:
        main(["prepare", "--runner", "DataflowRunner", *words])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert "unrecognized arguments: --project mine --region here" in error
    assert "those of the runner come after --: ... -- --project mine --region here" in error
    with pytest.raises(SystemExit):
        main(["prepare", *words])
    assert "come after" not in capsys.readouterr().err


def test_help_without_a_verb_and_of_one(capsys):
    for words, code in (([], 2), (["help"], 0), (["help", "help"], 0)):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == code
        out, err = capsys.readouterr()
        assert out.startswith("usage: bert-jax") and "A first run" in out and err == ""
    with pytest.raises(SystemExit) as ended:
        main(["help", "plan"])
    assert ended.value.code == 0 and "--topology" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"bert-jax {__version__}\n"


# --- corpora -------------------------------------------------------------------------------------


def test_a_corpus_of_another_tokenizer(tmp_path, config, other_corpus, trained, exported, refused):
    for checkpoint in (trained, exported):
        said = refused(2, "evaluate", checkpoint, "--corpus", other_corpus)
        assert "was built with another tokenizer (" in said
        assert f"prepare the corpus again with --tokenizer {checkpoint}" in said
    said = refused(
        2, "pretrain", config, "--corpus", other_corpus, "--workdir", tmp_path / "w",
        "--init-from", trained,
    )  # fmt: skip
    assert "was built with another tokenizer (" in said


# --- workdirs ------------------------------------------------------------------------------------


@pytest.fixture
def run_again(tmp_path, trained, corpus):
    """The command that resumes a copy of the finished run."""
    workdir = shutil.copytree(trained, tmp_path / "again")
    return ("pretrain", workdir / "config.json", "--workdir", workdir, "--corpus")


def test_a_config_that_is_damaged(run_again, tmp_path, corpus, refused):
    (tmp_path / "again" / "config.json").write_text('{"config": {,}')
    command = ("pretrain", "tiny_docs_cpu", *run_again[2:], corpus)
    assert "config.json is not JSON" in refused(2, *command)
    assert "config.json is not JSON" in refused(2, "report", tmp_path / "again")


def test_a_corpus_that_changed(run_again, other_corpus, refused):
    said = refused(3, *run_again, other_corpus)
    assert "holds a run that differs: corpus: " in said and "; tokenizer: " in said


def test_a_finished_run_is_not_changed(run_again, trained, corpus, capsys):
    """Fields without an effect on the results may differ."""
    workdir = run_again[3]
    before = (workdir / "metrics.jsonl").read_bytes()
    free = ["--set", "checkpoint.every_steps=7", "--set", "log_every_steps=3"]
    assert main([*map(str, run_again), str(corpus), *free]) == 0
    assert "is already at its last step, 200; nothing left to do" in capsys.readouterr().err
    assert (workdir / "metrics.jsonl").read_bytes() == before
    assert not (workdir / "metrics.aside.jsonl").exists()


def test_a_directory_with_other_files(tmp_path, config, corpus, refused):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("precious")
    said = refused(2, "pretrain", config, "--corpus", corpus, "--workdir", tmp_path / "photos")
    assert "is not a run; choose another directory" in said
    assert [p.name for p in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_file_in_place_of_a_workdir(tmp_path, config, corpus, refused):
    (tmp_path / "file").write_text("precious")
    said = refused(2, "pretrain", config, "--corpus", corpus, "--workdir", tmp_path / "file")
    assert said.startswith(f"--workdir {tmp_path / 'file'}: ")
    assert (tmp_path / "file").read_text() == "precious"


def test_a_workdir_without_checkpoint(tmp_path, trained, corpus, refused):
    workdir = tmp_path / "begun"
    shutil.copytree(trained, workdir, ignore=shutil.ignore_patterns("[0-9]*"))
    for command in (
        ("evaluate", "--corpus", corpus),
        ("fill-mask", "The [MASK]."),
        ("export", "--output-dir", tmp_path / "hf"),
    ):
        said = refused(5, command[0], workdir, *command[1:])
        assert said == f"workdir {workdir} has no finished checkpoint yet"


def test_a_path_without_a_checkpoint(tmp_path, corpus, refused):
    missing = tmp_path / "missing"
    said = refused(2, "evaluate", missing, "--corpus", corpus)
    assert said == f"CHECKPOINT {missing}: no such directory"
    (tmp_path / "empty").mkdir()
    said = refused(2, "evaluate", tmp_path / "empty", "--corpus", corpus)
    assert "is neither a workdir" in said


def test_a_folder_that_holds_a_workdir(tmp_path, trained, refused):
    """The message names the workdir in the folder."""
    home = shutil.copytree(trained, tmp_path / "run" / "workdir", ignore=_without_steps).parent
    said = refused(2, "fill-mask", home, "A [MASK].")
    assert "is neither a workdir" in said and said.endswith(f"; {home / 'workdir'} is one")
    said = refused(2, "report", home)
    assert said == f"{home} is not a workdir: it has no config.json; {home / 'workdir'} is one"
    for seed in range(2):  # as finetune has several runs
        shutil.copytree(home / "workdir", tmp_path / "sweep" / "runs" / f"seed-{seed}")
    for command in (("predict", "--input", "x"), ("export", "--output-dir", tmp_path / "x")):
        said = refused(2, *command, tmp_path / "sweep")
        assert said.endswith(f"; {tmp_path / 'sweep' / 'runs' / 'seed-0'} is one of 2 in it")


@pytest.mark.parametrize("command", [("report",), ("checkpoints", "list")])
def test_a_model_of_transformers_is_no_workdir(exported, refused, command):
    """Both have a config.json, and a model has neither a log nor steps to show."""
    said = refused(2, *command, exported)
    assert said == f"{exported} is not a workdir: its config.json is that of a model"


def _without_steps(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if name.isdigit()]


@pytest.mark.parametrize(
    "command",
    [
        ("report", "w", "--html"),
        ("attention", "w", "A text.", "--html"),
        ("probe", "w", "--output-file"),
        ("embed", "w", "--input", "t", "--output-file"),
        ("predict", "w", "--input", "t", "--output-file"),
        ("export", "w", "--output-dir"),
        ("average", "w", "--output-dir"),
        ("pretrain", "bert_base", "--corpus", "c", "--workdir"),
        ("finetune", "c", "--task", "ner", "--workdir"),
    ],
)
def test_an_output_that_cannot_be_written_is_found_first(tmp_path, refused, command):
    (tmp_path / "file").write_text("precious")
    place = tmp_path / "file" / "x.npz"
    said = refused(2, *command, place)
    assert said.startswith(f"{command[-1]} {place}: {tmp_path / 'file'} is a file")


def test_an_output_that_exists(tmp_path, trained, exported, refused):
    said = refused(2, "export", trained, "--output-dir", exported)
    assert said.startswith(f"--output-dir {exported} is not empty")


# --- errors in a run ---------------------------------------------------------------------


def test_a_full_disk(tmp_path, corpus):
    """No file may grow beyond a few kilobytes: the logs fit, a checkpoint does not."""
    short = tiny_config(phases=_SHORT, optimizer=OptimizerConfig(warmup_steps=0))
    config = tiny_corpus.write_config(tmp_path / "short.json", short)
    arguments = ["pretrain", config, "--corpus", corpus, "--workdir", tmp_path / "w"]
    arguments += ["--set", "checkpoint.max_failed_saves=0", "--set", "model.num_hidden_layers=1"]
    alone = {"JAX_NUM_CPU_DEVICES": "1", "JAX_ENABLE_COMPILATION_CACHE": "0"}
    # Python 3.11 keeps a module's bytecode that was cut short, and every later import of it fails.
    alone["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", sys.executable, "-m", "bert_jax"]
        + [str(argument) for argument in arguments],
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        timeout=HUNG,
    )
    assert done.returncode == 7, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert line.startswith("bert-jax pretrain: error: a checkpoint could not be saved: ")
    assert "free or repair the storage and run the same command again" in line
    assert "Traceback" not in done.stderr, done.stderr
