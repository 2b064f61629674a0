"""`import bert_jax`: the snippets of docs/guides/python.md run, with the command line's numbers."""

import ast
import dataclasses
import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import bert_jax
from bert_jax.__main__ import main
from bert_jax.config import HeadConfig
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface
from tests.paths import ROOT

_ROOT = ROOT
_PAGE = (_ROOT / "docs" / "guides" / "python.md").read_text(encoding="utf-8")
_SNIPPETS = re.findall(r"^```python\n(.*?)^```", _PAGE, flags=re.DOTALL | re.MULTILINE)
_TEXT = "The horse of Ada eats [MASK] every day."


@pytest.fixture(scope="module")
def runs(tmp_path_factory, trained, corpus) -> Path:
    """A folder with what the page calls `runs/`; its run may be written to."""
    folder = tmp_path_factory.mktemp("python") / "runs"
    shutil.copytree(trained, folder / "base")
    shutil.copytree(corpus, folder / "corpus")
    return folder


@pytest.fixture(scope="module")
def model(exported) -> bert_jax.Model:
    return bert_jax.load(exported)


@pytest.fixture
def logger():
    """The logger of the library; its level is restored."""
    found = logging.getLogger("bert_jax")
    level = found.level
    yield found
    found.setLevel(level)


def snippet(number: int, runs: Path) -> str:
    return _SNIPPETS[number].replace('"runs/', f'"{runs}/')


# --- the page -------------------------------------------------------------------------------------


def test_the_first_script_gives_the_numbers_of_the_command_line(tmp_path, runs, capsys):
    """Of a workdir; tests/pretrained/test_export.py holds that other formats are the same model."""
    code = snippet(0, runs)
    assert len(code.strip().splitlines()) <= 15
    found: dict = {}
    exec(code, found)
    assert jax.sharding.get_mesh().empty
    rows = [line.split(" ", 2) for line in capsys.readouterr().out.splitlines()[:3]]
    path = str(runs / "base")
    assert main(["fill-mask", path, "--top", "3", _TEXT]) == 0
    table = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("│")
    ]
    assert rows == table
    (tmp_path / "texts.txt").write_text("The horse eats hay.\nAn owl sleeps in the tower.\n")
    output = tmp_path / "vectors.npz"
    command = ["embed", path, "--input", str(tmp_path / "texts.txt")]
    assert main([*command, "--max-length", "48", "--output-file", str(output)]) == 0
    np.testing.assert_array_equal(found["vectors"], np.load(output)["vectors"])


def test_the_page_runs_from_top_to_bottom(tmp_path, runs, capsys, monkeypatch, logger):
    monkeypatch.setattr(bert_jax.SCHEDULES, "_entries", dict(bert_jax.SCHEDULES._entries))
    found: dict = {}
    for number in range(len(_SNIPPETS)):
        exec(compile(snippet(number, runs), f"python.md, snippet {number}", "exec"), found)
    assert found["is_next"].shape == (2,)
    assert found["states"].shape == (3, 1, 8, 32)
    assert found["closing"]["step"] == 200
    assert found["outputs"]["pooled"].shape == (1, 32)
    assert found["config"].optimizer.schedule.kind == "flat"
    # What it predicted is what the command line says of the same rows.
    said = found["reviews"].predict([{"text": "the young horse"}, "the old bear"])
    (tmp_path / "rows.csv").write_text("text\nthe young horse\nthe old bear\n")
    capsys.readouterr()
    command = ["predict", str(runs / "reviews")]
    assert main([*command, "--input", str(tmp_path / "rows.csv")]) == 0
    assert said == [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def run_notebook(name: str, changes: dict[str, str]) -> dict:
    """Runs the cells of a notebook, but for those that install something; returns its names."""
    notebook = json.loads((_ROOT / "examples" / name).read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert {"metadata", "cells"} < notebook.keys()
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    found: dict = {}
    left = dict(changes)
    for cell in notebook["cells"]:
        code = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            for old in [old for old in left if old in code]:
                code = code.replace(old, left.pop(old))
            code = compile(code, cell["id"], "exec")
            if "install" not in cell["metadata"].get("tags", ()):
                exec(code, found)
    assert not left
    return found


def test_the_notebook_runs(runs, capsys):
    found = run_notebook("python.ipynb", {'"../runs/demo/workdir"': f'"{runs}/base"'})
    assert found["closing"]["step"] == 20
    assert found["model"].step > 0 and found["vectors"].shape[0] == 3
    # The paths are those of the demo, as seen from the notebook's own folder.
    demo = (_ROOT / "examples" / "demo.sh").read_text(encoding="utf-8")
    assert "runs=${1:-runs/demo}" in demo and '--workdir "$runs/workdir"' in demo
    text = (_ROOT / "examples" / "python.ipynb").read_text(encoding="utf-8")
    assert "jupyter notebook examples/python.ipynb" in text


def test_the_notebook_of_a_whole_run(tmp_path, monkeypatch, capsys):
    """From text to vectors, at a smaller size; the second training resumes the first."""
    monkeypatch.chdir(tmp_path)
    found = run_notebook(
        "colab.ipynb",
        {
            "topics.topics.values()": "[*topics.topics.values()][:20]",
            "vocab_size=2048, validation": "vocab_size=512, validation",
            "vocab_size=2048,\n            hidden_size=128": "vocab_size=512, hidden_size=32",
            "intermediate_size=512": "intermediate_size=64",
            "learning_rate=1e-3, warmup_steps=20": "learning_rate=5e-3, warmup_steps=5",
            "global_batch_size=32": "global_batch_size=16",
            "every_steps=100, num_examples=128": "every_steps=20, num_examples=128",
            "every_steps=50": "every_steps=20",
            "pretrain(steps=100)": "pretrain(steps=20)",
            "pretrain(steps=200)": "pretrain(steps=60)",
        },
    )
    assert (found["first"]["step"], found["second"]["step"]) == (20, 60)
    losses = [found[name]["validation"]["mlm_loss"] for name in ("first", "second")]
    assert losses[1] < losses[0] < found["second"]["unigram_entropy"] + 1
    text = (tmp_path / "runs" / "notebook" / "workdir" / "events.jsonl").read_text()
    events = [json.loads(line) for line in text.splitlines()]
    assert [event["step"] for event in events if event["event"] == "resume"] == [20]
    assert found["vectors"].shape == (3, 32)
    assert np.allclose(np.diag(found["vectors"] @ found["vectors"].T), 1, atol=1e-5)


def test_an_address_is_no_folder_of_this_machine(runs, tmp_path, monkeypatch):
    """A path of one has lost a slash: it would be a folder that is called gs: here."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("one\n\ntwo\n")
    place, config = Path("gs://b/x"), bert_jax.load_config("tiny_docs_cpu")
    for call, said in (
        (lambda: bert_jax.prepare(["a.txt"], "gs://b/x"), "gs://b/x is an address"),
        (lambda: bert_jax.prepare(["a.txt"], place), "gs:/b/x is an address"),
        (lambda: bert_jax.export_checkpoint(runs / "base", place, to="hf"), "is an address"),
        (lambda: bert_jax.load(place), "gs:/b/x has lost a slash"),
        (
            lambda: bert_jax.pretrain(
                config, corpus_directory={"a": place, "b": "gs://b/y"}, workdir_path="run"
            ),
            "is an address",
        ),
        (
            lambda: bert_jax.pretrain(config, corpus_directory="corpus", workdir_path=place),
            "gs:/b/x has lost a slash: give the address as a str",
        ),
    ):
        with pytest.raises(bert_jax.UsageError, match=said):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


# --- the names ------------------------------------------------------------------------------------


def test_every_name_is_offered_the_three_ways():
    """To `import *` and `dir`, to whoever asks, and to editors and type checkers."""
    tree = ast.parse(Path(bert_jax.__file__).read_text(encoding="utf-8"))
    (for_editors,) = [node for node in tree.body if isinstance(node, ast.If)]
    offered = {
        alias.name: node.module
        for node in for_editors.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(offered) == sorted(bert_jax.__all__)
    assert set(offered) <= set(dir(bert_jax))
    for name in offered:
        assert getattr(bert_jax, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Trainer'"):
        bert_jax.Trainer  # noqa: B018


def test_a_config_in_python_imports_nothing_heavy():
    heavy = "flax jax numpy optax orbax rich sentencepiece tensorflow tokenizers transformers"
    code = (
        "import sys, bert_jax as b\n"
        "dir(b); b.load_config('bert_base', ['seed=1']); b.OBJECTIVES.names(); b.silence()\n"
        "b.TrainConfig(model=b.ModelConfig(hidden_size=32)); b.UsageError\n"
        f"found = set({heavy.split()!r}) & set(sys.modules)\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_silence_can_be_undone(logger):
    from bert_jax import progress

    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    bert_jax.silence()
    progress.note("one")
    bert_jax.silence(False)
    progress.note("two")
    logger.removeHandler(handler)
    assert heard == ["two"]


# --- a model --------------------------------------------------------------------------------------


def test_the_methods_agree(model):
    """Logits at a [MASK] are what fill_mask ranks; vectors are means of hidden states."""
    ids = model.encode(_TEXT)["input_ids"][0]
    place = list(ids).index(model.tokenizer.special.mask)
    logits = model.logits(_TEXT)
    assert logits["mlm_logits"].shape == (1, len(ids), 240) and len(ids) % 8 == 0
    scores = logits["mlm_logits"][0, place, : model.tokenizer.vocab_size].astype(np.float64)
    shares = np.exp(scores) / np.exp(scores).sum()
    (candidates,) = model.fill_mask(_TEXT, top=3)
    assert model.fill_mask([_TEXT, "A [MASK]."], top=3)[0] == [candidates]
    assert [c.token for c in candidates] == model.tokenizer.tokens(list(np.argsort(-shares)[:3]))
    np.testing.assert_allclose([c.probability for c in candidates], -np.sort(-shares)[:3], 1e-4)

    texts = ["The horse eats hay.", "An owl"]
    states = model.hidden_states(texts)
    is_token = model.encode(texts)["sequence_ids"] > 0
    assert states.shape == (3, *is_token.shape, 32)
    assert not states[:, ~is_token].any() and states[:, is_token].any(axis=-1).all()
    joined = np.concatenate([states[0], states[2]], axis=-1)
    tokens = model.embed(texts, layers=(0, -1), pooling="none")
    for number, text in enumerate(tokens):
        np.testing.assert_allclose(text, joined[number][is_token[number]], atol=1e-6)
    means = model.embed(texts, layers=(0, -1))
    np.testing.assert_allclose(means, [text.mean(axis=0) for text in tokens], atol=1e-6)
    assert jax.sharding.get_mesh().empty


def test_a_model_ignores_the_mesh_outside(exported, model):
    """Inside of a mesh with other axes, and by the bare function without any."""
    expected = model.logits("The horse eats hay.")
    for kind in (AxisType.Explicit, AxisType.Auto):
        theirs = jax.make_mesh((4, 2), ("rows", "model"), axis_types=(kind,) * 2)
        with jax.set_mesh(theirs):
            found = bert_jax.load(exported).logits("The horse eats hay.")
            assert jax.sharding.get_mesh() == theirs
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
    batch = model.encode("The horse eats hay.")
    config = model.config
    outputs = bert_jax.apply(
        jax.device_get(model.params),
        batch | {"mlm_positions": batch["position_ids"]},
        config=config.model,
        head=config.head,
        compute=config.compute,
    )
    is_token = batch["sequence_ids"] > 0
    np.testing.assert_allclose(
        np.asarray(outputs["mlm_logits"])[is_token], expected["mlm_logits"][is_token], atol=1e-5
    )


def test_bad_arguments(model, trained):
    for ask, message in (
        (lambda: model.fill_mask("no mask"), r"has no \[MASK\]"),
        (lambda: model.fill_mask(["a [MASK]", 3]), "text 1: expected a text, got 3"),
        (lambda: model.embed([3]), "text 0: expected a text, got 3"),
        (lambda: model.embed(None), "expected a text or a list of texts, got None"),
        (lambda: model.encode(3), "expected a text or a list of texts, got 3"),
        (lambda: model.embed([]), "`texts` is empty"),
        (lambda: model.embed("a", layers=3), "`layers` 3: the model has layers 1 to 2"),
        (lambda: model.embed("a", layers=[]), "`layers` is empty"),
        (lambda: model.embed("a", layers=1.5), "`layers` 1.5: must be an integer"),
        (lambda: model.embed("a", length=2), "`length` 2: it must be at least 3"),
        (lambda: model.logits([("a", "b")], length=3), "`length` 3: it must be at least 5"),
        (lambda: model.embed("a", length=64), "`length` 64: the model has only 48 positions"),
        (lambda: model.logits(["a", ("a", "b")]), "only texts or only pairs of texts"),
        (lambda: model.encode([("a", "b", "c")]), "row 0: expected a text or a pair of two"),
        (lambda: model.predict(["a"]), "is not a workdir of bert-jax finetune"),
        (lambda: bert_jax.load(trained / "nothing"), "no such directory"),
    ):
        with pytest.raises(UsageError, match=message):
            ask()


def test_a_model_without_a_head_has_no_logits(model, exported, tmp_path):
    encoder = huggingface.read(exported)
    huggingface.write(
        tmp_path / "bare",
        {name: encoder.params[name] for name in ("encoder", "pooler")},
        encoder.model,
        head=HeadConfig(parts=("pooler",)),
        tokenizer=exported,
    )
    bare = bert_jax.load(tmp_path / "bare")
    with pytest.raises(UsageError, match="the model has no head"):
        bare.logits("The horse eats hay.")
    assert bare.hidden_states("The horse eats hay.").shape[1] == 1


def test_a_task_is_named_and_files_are_strings(exported, tmp_path):
    """As everything else of a `finetune` in Python; the rows to predict may be an array."""
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + 8 * "the small horse,good\nthe old owl,bad\n")
    spec = dataclasses.replace(bert_jax.TASKS["text"].spec, text_columns=("text",))
    task = dataclasses.replace(bert_jax.TASKS["text"], spec=spec)
    rows = bert_jax.Sources(train=str(path), dev=str(path))
    assert rows == bert_jax.Sources(train=path, dev=path)
    assert bert_jax.Sources(data=tmp_path) == bert_jax.Sources(data=str(tmp_path))
    settings = bert_jax.Settings(length=16, batch_size=8, restarts=0)
    with pytest.raises(UsageError, match="`task` text needs one or two `text` COLUMN"):
        bert_jax.finetune(exported, tmp_path / "run", "text", rows, settings)
    bert_jax.finetune(exported, tmp_path / "run", task, rows, settings)
    tuned = bert_jax.load(tmp_path / "run")
    assert tuned.predict(np.array(["the owl", "a horse"])) == tuned.predict(["the owl", "a horse"])
    for wrong in (np.array([]), "a", {"text": "a"}):
        with pytest.raises(UsageError, match="`rows`: expected a list"):
            tuned.predict(wrong)
    for wrong in ({"seeds": 0}, {"batch_size": 0}, {"restarts": -1}):
        with pytest.raises(UsageError, match=f"`{next(iter(wrong))}` .*: must be"):
            bert_jax.Settings(length=16, **wrong)
    with pytest.raises(UsageError, match="`train_rows` -1: must be at least 1"):
        bert_jax.Sources(train=path, train_rows=-1)


def test_rows_of_every_kind_are_read():
    from bert_jax.tasks.task import task_of

    pairs = task_of(bert_jax.TASKS["mrpc"].spec)
    first, second = pairs.spec.text_columns
    expected = pairs.row(("a b", "c"), number=3)
    assert (expected.texts, expected.id) == (("a b", "c"), "3")
    assert pairs.row({first: "a b", second: "c", "label": "1"}, number=3) == expected
    words = task_of(bert_jax.TASKS["ner"].spec)
    assert words.row("the  cat", number=0) == words.row(["the", "cat"], number=0)
    questions = task_of(bert_jax.TASKS["squad"].spec)
    question = questions.row({"question": "Who?", "context": "Ada slept."}, number=2)
    assert (question.id, question.answers) == ("2", ())
    for kind, row, wanted in (
        (pairs, "a", "the text of"),
        (pairs, {first: "a"}, "the text of"),
        (words, {"words": ["a"]}, "a text or its words"),
        (words, "", "a text or its words"),
        (questions, "Who?", "a dict of question and context"),
    ):
        with pytest.raises(UsageError, match=f"row 7: expected {wanted}"):
            kind.row(row, number=7)
