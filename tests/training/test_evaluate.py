"""Held-out evaluation: one number, however the set is cut and wherever it runs."""

import dataclasses
import itertools
import json
import math
import shutil

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from safetensors.numpy import load_file, save_file

from bert_jax.__main__ import main
from bert_jax.config import TrainConfig
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.pretraining.pipeline import EvaluationSet
from bert_jax.model import bert, sharding
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.training import evaluate
from bert_jax.training.evaluate import HeldOut, evaluate_checkpoint
from bert_jax.workdir import log_reader
from tests import tiny_corpus
from tests.tiny_corpus import tiny_config

_CONFIG = tiny_config()


@pytest.fixture(scope="module")
def params():
    """Far from the beginning, where all losses are alike."""
    fresh = jax.device_get(jax.jit(lambda: bert.init_params(_CONFIG.model, seed=1))())
    return jax.tree.map(lambda x: 6 * x, fresh)


def evaluated(params, corpus, config=_CONFIG, *, devices=1, phase=_CONFIG.phases[0]):
    mesh = sharding.make_mesh(fsdp=devices, tensor=1, devices=jax.local_devices()[:devices])
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, NamedSharding(mesh, jax.P()))
        held_out = HeldOut(config, phase, corpus=open_corpus(corpus), mesh=mesh, params=placed)
        scores = held_out.run(placed)
    assert scores is not None and scores.keys() == {"validation"}
    return scores["validation"]


def evaluating(**changes) -> TrainConfig:
    options = dataclasses.replace(_CONFIG.evaluation, **changes)
    return dataclasses.replace(_CONFIG, evaluation=options)


def by_hand(params, corpus, *, num_examples: int) -> dict[str, float]:
    """The definition: one batch of all examples, means over the tokens that were masked."""
    opened, phase = open_corpus(corpus), _CONFIG.phases[0]
    examples = EvaluationSet(
        opened.validation,
        collator=MLM_NSP,
        vocabulary=opened.vocabulary,
        options=_CONFIG.data,
        sequence_length=phase.sequence_length,
        max_predictions=phase.max_predictions,
        num_examples=num_examples,
        batch_size=num_examples,
        seed=evaluate.EVALUATION_SEED,
    )
    assert examples.num_examples == num_examples
    batch = examples.batch_at(0, range(num_examples))
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        outputs = jax.jit(
            lambda p, b: bert.apply(p, b, config=_CONFIG.model, compute=_CONFIG.compute)
        )(params, jax.device_put(batch, sharding.batch_sharding(mesh)))
    result = {}
    for name, targets in (("mlm", batch["mlm_targets"]), ("nsp", batch["nsp_labels"])):
        logits = np.asarray(outputs[f"{name}_logits"], np.float64)
        counted = batch[f"{name}_weights"] == 1
        chosen = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        loss = np.log(np.exp(logits).sum(-1)) - chosen
        result[f"{name}_loss"] = loss[counted].mean()
        result[f"{name}_accuracy"] = (logits.argmax(-1) == targets)[counted].mean()
    result["loss"] = result["mlm_loss"] + result["nsp_loss"]
    return result | {"perplexity": math.exp(result["mlm_loss"])}


@pytest.mark.parametrize("devices, batch_size", [(1, 7), (8, 64)])
def test_the_numbers_are_those_of_the_definition(params, corpus, devices, batch_size):
    """50 examples divide by none of these batches: the last is filled with what counts for 0."""
    expected = by_hand(params, corpus, num_examples=50)
    values = evaluated(params, corpus, evaluating(batch_size=batch_size), devices=devices)
    assert values.keys() == expected.keys()
    for name, value in values.items():
        # An error of the loss is a share of its exponential.
        scale = expected["mlm_loss"] if name == "perplexity" else 1.0
        assert value == pytest.approx(expected[name], rel=2e-6 * scale), name
    assert 0 < values["mlm_accuracy"] < 1 and 0 < values["nsp_accuracy"] < 1


def test_more_examples_than_there_are_is_all_of_them(params, corpus):
    few, every, again = (
        evaluated(params, corpus, evaluating(num_examples=number)) for number in (50, 10**6, 10**7)
    )
    assert few != every == again


def test_runs_of_other_seeds_see_the_same_examples(params, corpus):
    other = dataclasses.replace(_CONFIG, seed=1)
    assert evaluated(params, corpus, other) == evaluated(params, corpus)


def test_a_phases_own_mask_rate_and_batch_are_not_those_of_its_evaluation(params, corpus):
    """Else the curve would jump where the rate changes, or the room for predictions."""
    changes = {"masked_lm_prob": 0.4, "max_predictions": 19, "global_batch_size": 24}
    phase = dataclasses.replace(_CONFIG.phases[0], **changes)
    assert evaluated(params, corpus, phase=phase) == evaluated(params, corpus)


def test_nothing_counted_is_a_loss_of_zero():
    sums = {f"{n}_{k}": 0.0 for n in ("mlm", "nsp") for k in ("loss", "hits", "count")}
    assert MLM_NSP.summarise(sums)["loss"] == 0.0
    assert MLM_NSP.summarise(sums)["perplexity"] == 1.0


def test_a_hopeless_loss_has_a_perplexity_that_json_can_write():
    sums = {"mlm_loss": 1e6, "mlm_hits": 0.0, "mlm_count": 10.0}
    sums |= {"nsp_loss": 1.0, "nsp_hits": 1.0, "nsp_count": 2.0}
    values = MLM_NSP.summarise(sums)
    assert values["mlm_loss"] == pytest.approx(1e5)
    assert json.loads(json.dumps(values, allow_nan=False)) == values


@pytest.mark.core
def test_any_step_of_a_workdir_is_evaluated_as_during_the_run(trained, corpus):
    rows = [r for r in log_reader.read_rows(trained) if r.get("split") == "validation"]
    by_step = {row["step"]: row for row in rows}
    last = max(by_step)
    assert last == _CONFIG.total_steps
    for checkpoint in (trained, trained / "checkpoints" / str(last)):
        result = evaluate_checkpoint(checkpoint, corpus)
        assert result["step"] == last
        for name in ("loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "perplexity"):
            assert result[name] == by_step[last][name]


def test_held_out_text_that_was_trained_on_is_counted(trained, corpus, tmp_path, capsys):
    source = tiny_corpus.write(tmp_path / "stories.txt")
    places = {"alike": {}, "other": {"seed": 5, "validation_fraction": 0.3}}
    for name, options in places.items():
        options = {"validation_fraction": 0.2, **options}
        prepare([str(source)], tmp_path / name, tokenizer=str(corpus), workers=1, **options)

    def documents(directory, side):
        split = getattr(open_corpus(directory), side)
        ends = np.asarray(split.document_starts)
        sentences = [split.sentence(n).tobytes() for n in range(ends[-1])]
        return {b"".join(sentences[a:b]) for a, b in itertools.pairwise(ends)}

    def said(*arguments) -> str:
        capsys.readouterr()
        assert main(["evaluate", str(trained), *map(str, arguments)]) == 0
        return capsys.readouterr().err

    held_out = documents(tmp_path / "other", "validation")
    seen = held_out & documents(corpus, "train")
    assert 0 < len(seen) < len(held_out)
    expected = f"{len(seen)} of the {len(held_out)} held-out documents of {tmp_path / 'other'} are"
    text = said("--corpus", tmp_path / "other")
    assert expected in text and f"on which {trained} was trained" in text
    for arguments in ((), ("--corpus", corpus), ("--corpus", tmp_path / "alike")):
        assert "warning" not in said(*arguments)


def test_a_corpus_that_was_prepared_again_is_said(trained, corpus, tmp_path, capsys):
    moved = shutil.copytree(trained, tmp_path / "workdir")
    again = tmp_path / "again"
    source = tiny_corpus.write(tmp_path / "stories.txt")
    prepare([str(source)], again, tokenizer=str(corpus), seed=5, validation_fraction=0.3, workers=1)
    stored = json.loads((moved / "config.json").read_text())
    stored["corpus"] |= {"directory": str(again), "absolute": str(again)}
    (moved / "config.json").write_text(json.dumps(stored))
    assert main(["evaluate", str(moved)]) == 0
    found = open_corpus(again).fingerprint[:12], open_corpus(corpus).fingerprint[:12]
    err = capsys.readouterr().err
    assert f"corpus {again} has changed since {moved} was trained" in err
    assert "{}, was {}".format(*found) in err


def test_a_corpus_that_was_moved_is_asked_for(trained, corpus, tmp_path, capsys):
    moved, gone = shutil.copytree(trained, tmp_path / "workdir"), tmp_path / "gone"
    stored = json.loads((moved / "config.json").read_text())
    stored["corpus"] |= {"directory": str(gone), "absolute": str(gone)}
    (moved / "config.json").write_text(json.dumps(stored))
    for more in ([], [str(trained)], ["--eval-set-from", str(moved)]):
        assert main(["evaluate", str(moved), *more]) == 2
        said = capsys.readouterr().err
        assert f"was trained on the corpus {gone}, which is missing" in said
        assert "name its new path with --corpus" in said and "prepare" not in said
    assert main(["evaluate", str(moved), "--corpus", str(corpus)]) == 0


# --- one model, however it comes ------------------------------------------------------------------


@pytest.fixture(scope="module")
def unusual(trained, tmp_path_factory):
    """The run, with a config that says other rows than those of a foreign model."""
    workdir = tmp_path_factory.mktemp("unusual") / "workdir"
    shutil.copytree(trained, workdir)
    stored = json.loads((workdir / "config.json").read_text())
    config = stored["config"]
    config["data"] |= {"masking": "whole_words", "masked_lm_prob": 0.2, "random_next_prob": 0.3}
    config["phases"][-1] |= {"sequence_length": 24, "max_predictions": 4}
    config["compute"]["dtype"] = "bfloat16"
    (workdir / "config.json").write_text(json.dumps(stored))
    return workdir


@pytest.fixture(scope="module")
def copies(unusual, tmp_path_factory):
    """The same parameters as a workdir and as its export."""
    hf = tmp_path_factory.mktemp("copies") / "hf"
    assert main(["export", str(unusual), "--output-dir", str(hf)]) == 0
    return unusual, hf


def json_of(capsys, *arguments) -> dict:
    capsys.readouterr()
    assert main([*map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_spoilt_model_has_no_score(copies, corpus, tmp_path, capsys):
    """A table of nan looked like an answer, and its JSON is none."""
    spoilt = shutil.copytree(copies[1], tmp_path / "spoilt")
    file = spoilt / "model.safetensors"
    large = {name: array * np.float32(1e25) for name, array in load_file(file).items()}
    save_file(large, file, metadata={"format": "np"})
    capsys.readouterr()
    for form in ([], ["--json"]):
        assert main(["evaluate", str(spoilt), "--corpus", str(corpus), *form]) == 6
        said = capsys.readouterr()
        assert f"{spoilt} is not finite" in said.err and not said.out


def test_the_same_parameters_have_the_same_score(copies, corpus):
    run, export = copies
    whole, other = evaluate_checkpoint(run, corpus), evaluate_checkpoint(export, corpus, like=run)
    assert (whole["sequence_length"], whole["mask"], whole["step"]) == (24, "whole_words", 200)
    assert other["rows_of"] == str(run)
    for name, value in whole.items():
        if name not in ("checkpoint", "rows_of", "step", "expected"):
            is_text = isinstance(value, str)
            assert other[name] == (value if is_text else pytest.approx(value, rel=1e-5)), name


def test_the_same_parameters_give_the_same_answers(copies):
    """In float32, whatever the run computes in: as transformers computes from the export."""
    import bert_jax

    text = "At noon [MASK] goes to the stable."
    models = [bert_jax.load(copy) for copy in copies]
    vectors = [model.embed(["The bear eats honey.", "A horse"]) for model in models]
    places = [model.fill_mask(text) for model in models]
    logits = [model.logits(text)["mlm_logits"] for model in models]
    np.testing.assert_allclose(*vectors, atol=1e-5)
    np.testing.assert_allclose(*logits, atol=1e-5)
    for theirs, ours in zip(*(found[0] for found in places), strict=True):
        assert ours.token == theirs.token
        assert ours.probability == pytest.approx(theirs.probability, abs=1e-5)


def test_two_models_are_compared_on_the_rows_of_the_run(copies, exported, corpus, capsys):
    """The rows of a foreign model are not known: those of the run that it became are taken."""
    foreign = exported
    alone = json_of(capsys, "evaluate", "--json", foreign, "--corpus", corpus)
    assert alone["rows_of"] is None and alone["mask"] == "tokens"
    assert "its run is not known" not in capsys.readouterr().out
    like = json_of(capsys, "evaluate", "--json", foreign, "--eval-set-from", copies[0])
    whole = evaluate_checkpoint(copies[0], corpus)
    assert like["rows_of"] == str(copies[0])
    assert like["mlm_loss"] == pytest.approx(whole["mlm_loss"], rel=1e-5)
    assert main(["evaluate", str(foreign), str(copies[0])]) == 0
    out = capsys.readouterr().out
    assert out.count("24 tokens (sentence_pairs; 20 % masked by whole_words)") == 2
    assert out.count("the corpus's unigram entropy") == 2


def test_a_workdir_knows_its_corpus_and_prints_a_table(trained, capsys):
    last = [r for r in log_reader.read_rows(trained) if r.get("split") == "validation"][-1]
    capsys.readouterr()
    assert main(["evaluate", str(trained)]) == 0
    out = capsys.readouterr().out
    assert f"{last['mlm_loss']:.3f} nats" in out and "unigram entropy" in out
    short = json_of(capsys, "evaluate", "--json", trained, "--max-length", 16)
    assert short["sequence_length"] == 16 and short["mlm_loss"] != last["mlm_loss"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{hf}",), "records no corpus; name one with --corpus"),
        (("{hf}", "--max-length", "4"), "--max-length 4: it must be at least 8"),
        (("{run}", "--max-length", "512"), "has 48 positions, but the rows have 512 tokens"),
        (("{run}", "--eval-set-from", "{corpus}"), "is not a workdir; name the workdir of a run"),
    ],
)
def test_what_cannot_be_evaluated(arguments, said, trained, exported, corpus, capsys):
    places = {"hf": exported, "run": trained, "corpus": corpus}
    assert main(["evaluate", *(each.format(**places) for each in arguments)]) == 2
    assert said in capsys.readouterr().err


def test_the_run_knows_the_text_of_the_model_before_it(trained, exported, capsys):
    """Whatever comes first: the model that a run began from has no corpus of its own."""
    step = max((trained / "checkpoints").iterdir(), key=lambda path: path.name)
    for order in ((exported, trained), (trained, exported), (exported, step)):
        capsys.readouterr()
        assert main(["evaluate", *map(str, order)]) == 0
        assert capsys.readouterr().out.count("the corpus's unigram entropy") == 2


def test_a_run_without_phases_is_named(trained, exported, tmp_path, capsys):
    home = tmp_path / "run"
    shutil.copytree(trained, home)
    stored = json.loads((home / "config.json").read_text())
    stored["config"]["phases"] = []
    (home / "config.json").write_text(json.dumps(stored))
    for arguments in ([home], [exported, "--eval-set-from", home]):
        assert main(["evaluate", *map(str, arguments)]) == 2
        assert "phases is empty" in capsys.readouterr().err
