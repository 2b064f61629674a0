"""examples/babylm: the corpus, the exports by words, and all of it by one command."""

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.config import flatten
from bert_jax.config.resume import differences
from bert_jax_lab.studies.study import config_of, load_study
from tests import tiny_corpus
from tests.paths import ROOT

_FOLDER = ROOT / "examples" / "babylm"


def run(name: str, *arguments: object) -> None:
    """Runs a script of the folder in this process."""
    spec = importlib.util.spec_from_file_location(f"babylm_{name}", _FOLDER / f"{name}.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        script.main()


def words_of(folder: Path) -> int:
    """Returns what `wc -w` counts, in two locales, which agree."""
    text = b"".join(file.read_bytes() for file in sorted(folder.glob("*.txt")))
    counts = {
        int(subprocess.run(["wc", "-w"], input=text, stdout=subprocess.PIPE, check=True,
                           env={**os.environ, "LC_ALL": locale}).stdout)
        for locale in ("C", "C.UTF-8")
    }  # fmt: skip
    (count,) = counts
    return count


@pytest.fixture
def texts(tmp_path) -> Path:
    """Two sources with a document in common, and white space of several kinds."""
    # Documents of one paragraph: the sum of short ones comes close to a number of words.
    stories, others = ("\n".join(tiny_corpus.documents(seed=seed)).split("\n") for seed in (1, 2))
    others = ["\u00a0".join(text.split(" ", 3)) for text in others]
    (tmp_path / "stories.txt").write_text("\n\n".join(stories), encoding="utf-8")
    with gzip.open(tmp_path / "others.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n\n".join([stories[0], *others]))
    (tmp_path / "sources.toml").write_text(
        '[stories]\npath = "stories.txt"\nshare = 0.25\nlicense = "CC0-1.0"\n\n'
        '[others]\npath = "others.txt.gz"\nshare = 0.75\nlicense = "CC BY 4.0"\n'
    )
    return tmp_path


def test_a_corpus_has_its_shares_and_the_words_that_wc_counts(texts, tmp_path, capsys):
    made = []
    for name in ("a", "b"):
        sources = texts / "sources.toml"
        run("corpus", sources, "--words", 4000, "--seed", 3, "--output-dir", tmp_path / name)
        made.append({f.name: f.read_bytes() for f in (tmp_path / name).rglob("*.*")})
    assert made[0] == made[1], "the same seed, the same corpus"
    manifest = json.loads(made[0]["sources.json"])
    assert {n: s["license"] for n, s in manifest["sources"].items()} == {
        "stories": "CC0-1.0", "others": "CC BY 4.0",
    }  # fmt: skip
    counts = {name: source["train"]["words"] for name, source in manifest["sources"].items()}
    # A document has about fifty words; what one source lacks comes from the next.
    assert 950 < counts["stories"] <= 1000 and 3960 < sum(counts.values()) <= 4000
    assert manifest["words"] == sum(counts.values()) == words_of(tmp_path / "a" / "train")

    corpus = tmp_path / "corpus"
    command = ["prepare", "--source", str(tmp_path / "a" / "train"), "--workers", "1"]
    command += ["--validation-source", str(tmp_path / "a" / "validation")]
    assert main([*command, "--vocab-size", "200", "--output-dir", str(corpus)]) == 0
    prepared = json.loads((corpus / "corpus.json").read_bytes())["counts"]
    assert prepared["train"]["words"] == manifest["words"]
    assert prepared["validation"]["words"] == words_of(tmp_path / "a" / "validation")
    capsys.readouterr()
    assert main(["corpus", "show", str(corpus)]) == 0
    assert f"{manifest['words']:,}" in capsys.readouterr().out


def test_the_files_of_babylm_are_taken_whole(tmp_path):
    folder = tmp_path / "official"
    folder.mkdir()
    lines = [f"*MOT:\tlook at that !\n\n*CHI:\tdog{number} ." for number in range(900)]
    (folder / "childes.train").write_text("\n".join(lines), encoding="utf-8")
    (folder / "childes.dev").write_text("the held-out lines\n" * 30, encoding="utf-8")
    run("corpus", folder, "--words", 10_000, "--output-dir", tmp_path / "text")
    assert words_of(tmp_path / "text" / "train") == 900 * 8
    assert words_of(tmp_path / "text" / "validation") == 90


def test_the_study_changes_one_thing_at_a_time(monkeypatch):
    monkeypatch.delenv("BLIMP", raising=False)
    study = load_study(str(_FOLDER / "ablations.py"))
    assert study.probes == ()
    first, *others = (config_of(study, variant, 0) for variant in study.variants)
    assert first.model.num_hidden_layers == 2
    for other in others:
        changed = {path for path, _, _ in differences(flatten(first), flatten(other))}
        # A mask rate also determines how many predictions a row has room for.
        assert len(changed - {"name", "phases.0.max_predictions"}) == 1


@pytest.mark.full
def test_everything_by_one_command_with_reduced_sizes(texts, tmp_path, capfd):
    """As `make babylm` runs it; a second time does nothing, and what is missing is made again."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, words in (("python", ""), ("bert-jax", " -m bert_jax")):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        (tools / name).chmod(0o755)
    runs = tmp_path / "runs"
    small = "model.hidden_size=32 model.intermediate_size=48 model.num_hidden_layers=1"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "BIN": str(tools),
        "BABYLM_WORDS": "4000",
        "BABYLM_VOCAB": "200",
        "BABYLM_SOURCES": str(texts / "sources.toml"),
        "BABYLM_SET": f"{small} model.vocab_size=200 phases.0.global_batch_size=2",
    }

    def go() -> None:
        command = ["sh", str(_FOLDER / "babylm.sh"), str(runs)]
        subprocess.run(command, env=environment, check=True)

    go()
    exports = sorted((runs / "exports").iterdir())
    assert len(exports) == 19 and {"chck_400", "chck_4000", "chck_40000"} <= {
        export.name for export in exports
    }
    bits = {export.name: (export / "model.safetensors").read_bytes() for export in exports}
    assert len({*bits.values()}) == 19
    lines = (runs / "workdir" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert 9.9 < max(row.get("epochs", 0) for row in rows) <= 10
    scores = json.loads((runs / "scores.json").read_bytes())
    assert {found["name"] for found in scores["findings"]} >= {"agreement", "word_order"}

    # A kill between two exports leaves one that is not whole.
    exports[3].rename(exports[3].with_name(f".{exports[3].name}.part"))
    (runs / "exports" / f".{exports[3].name}.part" / "model.safetensors").unlink()
    go()
    again = sorted((runs / "exports").iterdir())
    assert [e.name for e in again] == [e.name for e in exports]
    assert {e.name: (e / "model.safetensors").read_bytes() for e in again} == bits
