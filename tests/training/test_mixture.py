"""A run over several corpora: interrupted and resumed, scored by source; bad sources."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.cli.corpora import corpora as corpora_of
from bert_jax.cli.corpora import named_corpus
from bert_jax.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    OptimizerConfig,
    PhaseConfig,
)
from bert_jax.data.corpus import store
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.several import open_corpora, trained_elsewhere
from bert_jax.runtime.stop import Preemption
from bert_jax.update.schedules import Constant
from bert_jax.workdir import log_reader
from bert_jax_lab.reports import run_data
from tests import tiny_corpus
from tests.states import arrays_of, assert_same_bits

_STEPS = 6


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> dict[str, Path]:
    """Two texts, one vocabulary; and a third text, to be taken for the second."""
    folder, found = tmp_path_factory.mktemp("corpora"), {}
    for seed, (name, stories) in enumerate({"tales": 40, "notes": 20, "other": 20}.items()):
        text = tiny_corpus.write(folder / f"{name}.txt", number=stories, seed=seed)
        vocabulary = {"tokenizer": str(folder / "tales")} if found else {"vocab_size": 200}
        prepare([str(text)], folder / name, validation_fraction=0.2, workers=1, **vocabulary)
        found[name] = folder / name
    return found


@pytest.fixture(scope="module")
def config_file(tmp_path_factory) -> Path:
    """Shares of 3 to 1, and of half and half from the fourth update on."""
    phase = PhaseConfig(sequence_length=32, steps=3, global_batch_size=8, max_predictions=5)
    even = dataclasses.replace(phase, source_weights="notes=1,tales=1")
    config = tiny_corpus.tiny_config(
        model=dataclasses.replace(tiny_corpus.tiny_config().model, num_hidden_layers=1),
        data=DataConfig(source_weights="tales=3,notes=1"),
        phases=(phase, even),
        evaluation=EvaluationConfig(every_steps=3, num_examples=16, batch_size=16),
        checkpoint=CheckpointConfig(every_steps=1, keep_last=9),
        optimizer=OptimizerConfig(learning_rate=5e-3, schedule=Constant(), warmup_steps=0),
    )
    return tiny_corpus.write_config(tmp_path_factory.mktemp("config") / "tiny.json", config)


def command(config: Path, workdir: Path, **sources: Path) -> list[str]:
    named = [f"--corpus={name}={directory}" for name, directory in sources.items()]
    return ["pretrain", str(config), *named, "--workdir", str(workdir)]


@pytest.fixture(scope="module")
def whole(config_file, corpora, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("whole") / "workdir"
    tales, notes = corpora["tales"], corpora["notes"]
    assert main(command(config_file, workdir, tales=tales, notes=notes)) == 0
    return workdir


def rows(workdir: Path) -> list[dict]:
    timed = ("time", "seconds", "per_second", "mfu")
    return [
        {name: value for name, value in row.items() if not any(word in name for word in timed)}
        for row in log_reader.read_rows(workdir)
    ]


def test_an_interrupted_run_ends_with_the_same_bits(whole, config_file, corpora, tmp_path):
    """Also if the sources are given in another order."""
    workdir = tmp_path / "workdir"
    tales, notes = corpora["tales"], corpora["notes"]
    again = command(config_file, workdir, notes=notes, tales=tales)
    for stop in (3, 5):
        with pytest.MonkeyPatch.context() as patch:
            saved = workdir / "checkpoints" / str(stop)
            patch.setattr(Preemption, "requested", lambda self, saved=saved: saved.is_dir())
            assert main(again) == 42
    assert main(again) == 0
    assert rows(workdir) == rows(whole)
    assert_same_bits(arrays_of(whole, _STEPS), arrays_of(workdir, _STEPS))


def test_epochs_of_each_source_are_logged(whole):
    trained = [row for row in rows(whole) if row.get("split", "train") == "train"]
    assert [row["step"] for row in trained] == list(range(1, _STEPS + 1))
    for name in ("notes", "tales"):
        epochs = [row[f"epochs/{name}"] for row in trained]
        assert epochs == sorted(epochs) and epochs[0] > 0
    # 6 and 2 rows of each batch in the first phase, 4 and 4 in the second, whose epochs have
    # other sizes.
    tales = [row["epochs/tales"] for row in trained]
    assert tales[2] / 18 == pytest.approx((tales[5] - tales[2]) / 12, rel=0.2)


def test_the_losses_of_the_sources_add_up_to_the_whole(whole, corpora, tmp_path, capsys):
    scores = {row["split"]: row for row in rows(whole) if row["step"] == _STEPS and "split" in row}
    assert set(scores) >= {"validation", "validation/tales", "validation/notes"}
    each = [scores["validation/tales"], scores["validation/notes"]]
    for loss in ("mlm", "nsp"):
        count = sum(row[f"{loss}_count"] for row in each)
        mean = sum(row[f"{loss}_count"] * row[f"{loss}_loss"] for row in each) / count
        assert mean == pytest.approx(scores["validation"][f"{loss}_loss"], rel=1e-6)
    # `evaluate` knows the corpora from the workdir, and finds the same.
    capsys.readouterr()
    assert main(["evaluate", str(whole), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # A source that has fewer held-out rows than are asked for counts for less.
    weights = [row["mlm_count"] for row in each]
    assert max(weights) > 1.2 * min(weights)
    entropies = [found["sources"][name]["unigram_entropy_nats"] for name in ("tales", "notes")]
    entropy = pytest.approx(np.dot(weights, entropies) / sum(weights), rel=1e-9)
    assert found["unigram_entropy_nats"] == entropy
    # In all places that compare with it.
    assert run_data.read(whole, name="whole")["unigram_entropy_nats"] == entropy
    export = ["export", str(whole), "--output-dir", str(tmp_path / "hf")]
    assert main(export) == 0
    card = (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    assert f"unigram entropy of the corpus is {found['unigram_entropy_nats']:.3f} nats" in card
    for name in ("tales", "notes"):
        assert found["sources"][name]["loss"] == pytest.approx(scores[f"validation/{name}"]["loss"])


def test_a_changed_corpus_of_a_source_is_named(whole, config_file, corpora, capsys):
    tales, other = corpora["tales"], corpora["other"]
    assert main(command(config_file, whole, tales=tales, notes=other)) == 3
    said = capsys.readouterr().err
    assert "corpus.notes" in said and "corpus.tales" not in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set=data.source_weights=tales=1"], "but the sources are notes, tales"),
        (["--set=data.source_weights=tales=1,notes=1,wiki=1"], "the sources are notes, tales"),
        (["--set=data.source_weights=tales=-1,notes=1"], "tales=-1 is not a weight"),
        (["--set=data.source_weights=tales=0,notes=0"], "no source has any rows"),
        (["--set=data.source_weights=tales,notes=0"], "tales is not a weight"),
    ],
)
def test_weights_that_are_not_those_of_the_sources(
    options, said, config_file, corpora, tmp_path, capsys
):
    sources = {name: corpora[name] for name in ("tales", "notes")}
    assert main([*command(config_file, tmp_path / "w", **sources), *options]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "w").exists()


def test_names_of_sources(config_file, corpora, tmp_path, capsys):
    tales, notes = corpora["tales"], corpora["notes"]
    twice = ["pretrain", str(config_file), "--workdir", str(tmp_path / "w")]
    assert main([*twice, f"--corpus=a={tales}", f"--corpus=a={notes}"]) == 2
    assert "are both called a; write them as NAME=DIR" in capsys.readouterr().err
    assert main([*twice, f"--corpus=a={tales}", f"--corpus=b={tales}"]) == 2
    assert "have the same text; name it once" in capsys.readouterr().err
    # Of one there is no name to write.
    blank = shutil.copytree(tales, tmp_path / "my corpus")
    assert corpora_of([named_corpus(str(blank))]) == blank
    assert main([*twice, f"--corpus={blank}", f"--corpus=b={notes}"]) == 2
    assert "my corpus: a source has a name of letters" in capsys.readouterr().err


def test_held_out_text_that_another_source_trains_on(config_file, corpora, tmp_path, capsys):
    """A held-out side of one's own, some of which is in the text of another source."""
    stories = tiny_corpus.documents(number=40, seed=0)[:12] + tiny_corpus.documents(seed=7)[:5]
    (tmp_path / "own.txt").write_text("\n\n".join(stories))
    text = tiny_corpus.write(tmp_path / "more.txt", number=20, seed=9)
    more = tmp_path / "more"
    prepare(
        [str(text)], more, tokenizer=str(corpora["tales"]), workers=1,
        validation_source=[str(tmp_path / "own.txt")],
    )  # fmt: skip
    place = {"tales": corpora["tales"], "notes": corpora["notes"], "more": more}
    corpus = open_corpora(place)

    def documents(split: store.Split) -> set[bytes]:
        ends = np.asarray(split.document_starts)
        sentences = [split.sentence(n).tobytes() for n in range(ends[-1])]
        return {b"".join(sentences[a:b]) for a, b in itertools.pairwise(ends)}

    sides = {n: open_corpora(directory) for n, directory in place.items()}
    shared = documents(sides["more"].validation) & documents(sides["tales"].train)
    assert 5 < len(shared) < 12 and not documents(sides["notes"].validation) & documents(
        sides["more"].train
    )
    sources = corpus.sources
    assert trained_elsewhere(sources, sources) == {("more", "tales"): len(shared)}
    assert trained_elsewhere(sources, {n: sources[n] for n in ("notes", "more")}) == {}
    both = {name: sources[name] for name in ("tales", "notes")}  # drawn alike
    assert trained_elsewhere(both, both) == {}
    said = (
        f"{len(shared)} of the 17 held-out documents of more are in the training text of tales; "
        "prepare tales again: pass the held-out text as `decontaminate`"
    )
    shares = ["--set=data.source_weights=tales=2,notes=1,more=1"]
    even = ["--set=phases.1.source_weights=tales=0,notes=1,more=1"]
    run = [*command(config_file, tmp_path / "workdir", **place), *shares, *even]
    assert main(run) == 0
    assert f"warning: {said}" in capsys.readouterr().err
    assert main(run) == 0  # it goes on, which was said
    assert "held-out documents" not in capsys.readouterr().err
    named = [f"--corpus={name}={directory}" for name, directory in place.items()]
    assert main(["doctor", *named, "--json"]) == 0
    checks = {each["check"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    found = checks["text"]
    assert found["result"] == "warned" and found["found"] == said.partition(";")[0]


def test_doctor_looks_at_the_text_of_each_source(corpora, tmp_path, capsys):
    """Also of one that is not in the middle of all; a source without rows is not looked at."""
    menus = "\n\n".join(f"Number {n}.\n" + 9 * "All rights are reserved here.\n" for n in range(40))
    (tmp_path / "zz.txt").write_text(menus)
    prepare(
        [str(tmp_path / "zz.txt")], tmp_path / "zz", tokenizer=str(corpora["tales"]), workers=1,
        validation_fraction=0.2,
    )  # fmt: skip
    places = [f"--corpus={directory}" for directory in (*corpora.values(), tmp_path / "zz")]

    def text(*arguments: str) -> dict:
        main(["doctor", *arguments, *places, "--json"])
        checks = json.loads(capsys.readouterr().out)["checks"]
        return next(each for each in checks if each["check"] == "text")

    found = text()
    assert found["result"] == "warned" and found["found"].startswith("zz: ")
    small = tiny_corpus.tiny_config()
    small = dataclasses.replace(
        small,
        model=dataclasses.replace(small.model, num_hidden_layers=1),
        data=DataConfig(source_weights="notes=1,other=1,tales=1,zz=0"),
        phases=small.phases[:1],
    )
    config = tiny_corpus.write_config(tmp_path / "small.json", small)
    assert text(str(config))["result"] == "passed"
