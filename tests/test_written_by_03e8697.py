"""Files that commit 03e8697 wrote are read, gone on with and written again to the same bits.

By the command line alone, in processes of their own: one CPU device, and XLA as users have it.
`tests/golden/make_written_by_03e8697.py` made the files and says what each is. On the kind of
machine and with the versions they were made with, every bit has to be the same; elsewhere numbers
are close.
"""

import importlib.util
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.data.corpus.store import open_corpus
from bert_jax.pretrained.load import RECORD
from tests.paths import GOLDEN

pytestmark = pytest.mark.compatible

_GOLDEN = GOLDEN
_WRITTEN = _GOLDEN / "written_by_03e8697"
_SPEC = importlib.util.spec_from_file_location("made", _GOLDEN / "make_written_by_03e8697.py")
assert _SPEC is not None and _SPEC.loader is not None
made = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(made)

_IS_SAME_MACHINE = made.platform() == json.loads((_WRITTEN / "platform.json").read_text())
# Elsewhere. Twenty updates at a rate of up to 5e-3 spread what rounding differs in: 03e8697 and
# f48f9c5 compute the same, and the latter comes to values 1.3e-5 away on an AMD EPYC.
_CLOSE = {"rtol": 1e-5, "atol": 3e-5}


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The files, for the tests of this module to go on with; what they write has other names."""
    return Path(shutil.copytree(_WRITTEN, tmp_path_factory.mktemp("written") / "files"))


def bert_jax(directory: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax", *command],
        cwd=directory,
        env=made.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def renamed(command: tuple[str, ...], **names: str) -> tuple[str, ...]:
    """The command with values of options replaced: `output="x"` for what follows --output."""
    found = list(command)
    for option, value in names.items():
        found[found.index(f"--{option}") + 1] = value
    return tuple(found)


def assert_same_numbers(
    now: Any, then: Any, where: str = "", *, bits: bool = _IS_SAME_MACHINE
) -> None:
    """Equal, or close where bits are not asked for: JSON values of the same form."""
    if isinstance(then, dict):
        assert list(now) == list(then), where
        for key in then:
            assert_same_numbers(now[key], then[key], f"{where}.{key}", bits=bits)
    elif isinstance(then, list):
        assert len(now) == len(then), where
        for i, (a, b) in enumerate(zip(now, then, strict=True)):
            assert_same_numbers(a, b, f"{where}.{i}", bits=bits)
    elif isinstance(then, float) and not bits:
        np.testing.assert_allclose(now, then, **_CLOSE, err_msg=where)
    else:
        assert now == then, where


def assert_same_files(now: Path, then: Path) -> None:
    """The same names and bytes; of a model card only that it is there."""
    names = sorted(str(p.relative_to(then)) for p in then.rglob("*") if p.is_file())
    assert sorted(str(p.relative_to(now)) for p in now.rglob("*") if p.is_file()) == names
    for name in names:
        if name != "README.md":
            assert (now / name).read_bytes() == (then / name).read_bytes(), name


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def documents_of(corpus: Path) -> list[list[list[int]]]:
    """All documents of both sides, as ids of sentences."""
    opened = open_corpus(corpus)
    found = []
    for split in (opened.train, opened.validation):
        tokens = np.concatenate(split.shards).tolist()
        cuts = split.sentence_starts.tolist()
        sentences = [tokens[a:b] for a, b in itertools.pairwise(cuts)]
        documents = itertools.pairwise(split.document_starts.tolist())
        found += [sentences[a:b] for a, b in documents]
    return sorted(found)


def test_a_corpus_that_was_finished_is_finished_and_keeps_its_sides(copy):
    shutil.copytree(copy / "corpus", copy / "corpus_kept")
    bert_jax(copy, *renamed(made.PREPARE, output="corpus_kept"))
    assert_same_files(copy / "corpus_kept", _WRITTEN / "corpus")


def test_a_corpus_is_prepared_to_the_same_ids(copy):
    """The sides are others: the words of a document draw now, and not its bytes."""
    bert_jax(copy, *renamed(made.PREPARE, output="corpus_again"), "--tokenizer", "corpus")
    assert documents_of(copy / "corpus_again") == documents_of(copy / "corpus")
    assert_same_files(copy / "corpus_again" / "tokenizer", _WRITTEN / "corpus" / "tokenizer")


def test_a_stopped_run_goes_on_to_the_same_end(copy):
    shutil.copytree(copy / "workdir", copy / "goes_on")
    bert_jax(copy, *renamed(made.PRETRAIN, workdir="goes_on"))
    before = made.rows_of(_WRITTEN / "workdir")
    rows = made.rows_of(copy / "goes_on")
    assert rows[: len(before)] == before
    assert_same_numbers(rows[len(before) :], lines_of(_WRITTEN / "end" / "rows.jsonl"))

    bert_jax(copy, *renamed(made.EXPORT_END, checkpoint="goes_on", output="end_again"))
    now = made.tensors_of(copy / "end_again")
    sums = json.loads((_WRITTEN / "end" / "tensors.json").read_text())
    assert list(now) == list(sums)
    if _IS_SAME_MACHINE:
        assert {name: made.digest(array) for name, array in now.items()} == sums
    else:
        for name, array in made.tensors_of(_WRITTEN / "end").items():
            np.testing.assert_allclose(now[name], array, **_CLOSE, err_msg=name)


@pytest.mark.parametrize("command", made.EXPORTS, ids=lambda command: command[-1])
def test_exports_have_the_same_bytes(copy, command):
    output = command[-1]
    bert_jax(copy, *renamed(command, output=f"{output}_again"))
    # An export of a run that can be scored says how, in a file more.
    assert (copy / f"{output}_again" / RECORD).exists() == ("tuned" not in output)
    (copy / f"{output}_again" / RECORD).unlink(missing_ok=True)
    assert_same_files(copy / f"{output}_again", _WRITTEN / output)


def test_a_finished_fine_tuning_run_is_known_as_finished(copy):
    bert_jax(copy, *made.FINETUNE)
    for name in ("result.json", "metrics.jsonl", "config.json"):
        assert (copy / "tuned" / name).read_bytes() == (_WRITTEN / "tuned" / name).read_bytes()


def test_fine_tuning_comes_to_the_same_end(copy):
    bert_jax(copy, *renamed(made.FINETUNE, workdir="tuned_anew"))
    assert_same_numbers(made.rows_of(copy / "tuned_anew"), made.rows_of(_WRITTEN / "tuned"))
    output = "tuned_anew_hf"
    bert_jax(copy, *renamed(made.EXPORTS[2], checkpoint="tuned_anew", output=output))
    then = made.tensors_of(_WRITTEN / "tuned_hf")
    now = made.tensors_of(copy / output)
    assert list(now) == list(then)
    for name, array in then.items():
        if _IS_SAME_MACHINE:
            assert made.digest(now[name]) == made.digest(array), name
        else:
            np.testing.assert_allclose(now[name], array, **_CLOSE, err_msg=name)


def test_predictions_are_the_same(copy):
    bert_jax(copy, *renamed(made.PREDICT, output="predictions_again.jsonl"))
    then = lines_of(_WRITTEN / "predictions.jsonl")
    # A few rows make a small batch now, whose products are summed in another order.
    assert_same_numbers(lines_of(copy / "predictions_again.jsonl"), then, bits=False)


def test_vectors_are_the_same(copy):
    bert_jax(copy, *renamed(made.EMBED, output="vectors_again.npz"))
    then, now = np.load(_WRITTEN / "vectors.npz"), np.load(copy / "vectors_again.npz")
    assert sorted(now) == sorted(then)
    for name in then:
        assert now[name].dtype == then[name].dtype, name
        # As for predictions.
        np.testing.assert_allclose(now[name], then[name], **_CLOSE, err_msg=name)


def test_masked_words_are_filled_in_as_before(copy):
    candidates = json.loads((_WRITTEN / "fill_mask.json").read_text(encoding="utf-8"))
    printed = bert_jax(copy, "fill-mask", "--checkpoint", "workdir", *candidates).splitlines()
    for places in candidates.values():
        for place in places:
            for candidate in place:
                # The table's row; probabilities are shown to three places. Its text was decoded
                # then, in small letters, and is the one that was given now.
                parts = (candidate["token"], candidate["text"])
                rows = [line for line in printed if all(part in line.lower() for part in parts)]
                shown = f"{candidate['probability']:.3f}"
                assert any(shown in row for row in rows) or not _IS_SAME_MACHINE, candidate
