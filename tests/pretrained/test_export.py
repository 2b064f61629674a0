"""Every verb reads directories of other systems, and `export` writes them."""

import dataclasses
import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.__main__ import main
from bert_jax.config import HeadConfig
from bert_jax.config_loader import load_config_json
from bert_jax.errors import StorageFailed
from bert_jax.interchange import huggingface, tf1
from bert_jax.interchange.name_map import Foreign
from bert_jax.model import sharding
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.workdir import checkpoint
from tests import tiny_corpus
from tests.models import HEADS, SIZES, assert_same, edit_config, random_params, vocabulary


def convert(*arguments) -> None:
    assert main([str(argument) for argument in arguments]) == 0


@pytest.fixture
def refused(capsys):
    """Returns what a command that fails with code 2 says after 'error: '."""

    def run(*arguments) -> str:
        assert main([str(argument) for argument in arguments]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        return said.split("error: ", 1)[1].strip()

    return run


def as_tf1(folder):
    model, head = SIZES["small"], HeadConfig()
    foreign = Foreign(model, head, random_params(model, head), step=77)
    tf1.write(folder / "tf1", foreign, tokenizer=vocabulary(folder / "words"))
    return folder / "tf1"


def as_hf(folder, name="ForPreTraining"):
    model, head = SIZES["small"], HEADS[name]
    params = random_params(model, head)
    words = vocabulary(folder / "words")
    huggingface.write(folder / "hf", params, model, head=head, tokenizer=words)
    return folder / "hf"


# --- both ways -----------------------------------------------------------------------------------


def test_formats_hold_the_same_model(tmp_path):
    """TF1, Hugging Face and TF1 again: the same parameters, vocabulary and config."""
    first, model = as_tf1(tmp_path), tmp_path / "hf"
    convert("export", first, "--output-dir", model)
    convert("export", "--format", "tf1", model, "--output-dir", tmp_path / "again")
    assert_same(huggingface.read(model).params, tf1.read(first).params)
    assert_same(tf1.read(tmp_path / "again").params, tf1.read(first).params)
    for file in ("vocab.txt", "bert_config.json"):
        assert (first / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


def test_a_directory_of_both_formats(tmp_path):
    """The directory is Hugging Face's; the prefix of the TF1 checkpoint names the other."""
    both = as_tf1(tmp_path)
    for path in as_hf(tmp_path).iterdir():
        shutil.copy(path, both / path.name)
    assert load_checkpoint(both).step == 0
    assert load_checkpoint(both / "bert_model.ckpt").step == 77


def test_files_and_types_of_an_export(tmp_path, trained):
    convert(
        "export",
        *(trained, "--output-dir", tmp_path / "hf"),
        *("--dtype", "bfloat16", "--max-file-size", "0.02"),
    )
    files = list((tmp_path / "hf").glob("model-*.safetensors"))
    assert len(files) > 1
    modes = {path.stat().st_mode for path in (*files, tmp_path / "hf/config.json")}
    assert len(modes) == 1, "others may read the weights, too"
    assert huggingface.read(tmp_path / "hf").head == HeadConfig()


# --- heads that are not there --------------------------------------------------------------------


def test_pretraining_begins_from_an_encoder(tmp_path, trained, corpus, refused, capsys):
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        source = load_checkpoint(trained, mesh=mesh)
        bare = {part: source.params[part] for part in ("encoder", "pooler")}
        huggingface.write(
            tmp_path / "hf",
            bare,
            source.config.model,
            head=HEADS["Model"],
            tokenizer=source.tokenizer,
        )
    # Another shape than the checkpoint has.
    model = dataclasses.replace(source.config.model, hidden_size=64,
                                hidden_dropout_prob=0.3)  # fmt: skip
    phase = dataclasses.replace(source.config.phases[0], steps=2)
    config = dataclasses.replace(source.config, model=model, phases=(phase,))
    config = tiny_corpus.write_config(tmp_path / "tiny.json", config)
    command = ("pretrain", config, "--corpus", corpus, "--workdir", tmp_path / "new")
    command = (*command, "--init-from", tmp_path / "hf", "--set", "optimizer.warmup_steps=1")
    said = refused(*command, "--set", "model.hidden_size=64")
    assert f"model.hidden_size is 64, the checkpoint's {source.config.model.hidden_size}" in said
    assert not (tmp_path / "new").exists()
    tensors = load_file(tmp_path / "hf/model.safetensors")
    extra = {f"cls.chain.{name}": np.zeros(2, np.float32) for name in ("weight", "bias")}
    save_file(tensors | extra, tmp_path / "hf/model.safetensors")
    said = refused(*command)
    assert "unexpected cls.chain.bias; unexpected cls.chain.weight. --ignore-unexpected" in said
    assert said.endswith("'cls.chain.*' reads the rest without them")
    command = (*command, "--ignore-unexpected", "cls.chain.*")
    convert(*command)
    said = capsys.readouterr().err
    assert f"layers of {source.config.model.hidden_size}, " in said
    assert "ignoring 2 tensors: cls.chain.bias, cls.chain.weight" in said
    assert "has no mlm, nsp: initialized from seed" in said
    assert max(checkpoint.steps(tmp_path / "new")) == 2
    ran = load_config_json(tmp_path / "new/config.json").model
    assert ran == dataclasses.replace(source.config.model, hidden_dropout_prob=0.3)
    # The run has its model now: neither the checkpoint nor its name is needed.
    shutil.rmtree(tmp_path / "hf")
    convert(*command)
    convert(*(part for part in command if part not in ("--init-from", tmp_path / "hf")))
    assert "is already at its last step, 2" in capsys.readouterr().err


def test_weights_that_are_pickled_and_a_model_without_its_tokenizer(tmp_path, refused):
    """The weights are converted in place, so that the directory still lacks the tokenizer."""
    source = as_hf(tmp_path, "Model")
    weights = source / "model.safetensors"
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    for name in ("vocab.txt", "tokenizer.json"):
        (source / name).unlink()
    said = refused("fill-mask", source, "a [MASK]")
    assert "AutoTokenizer" not in said and "save the tokenizer to the same directory" in said
    weights.unlink()
    said = refused("fill-mask", source, "a [MASK]")
    assert "pytorch_model.bin is pickled, and pickles are never read" in said
    assert f"with config.json and the tokenizer in {source}, and name that directory" in said


def test_a_tokenizer_that_is_not_the_models(tmp_path, refused):
    source = as_hf(tmp_path, "ForPreTraining")
    edit_config(source, pad_token_id=3)
    said = refused("fill-mask", source, "a [MASK]")
    assert "pad_token_id is 3 in config.json, but 0 in its tokenizer (tokenizer.json)" in said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Model", "no masked-LM head and the next-sentence head, only encoder, pooler"),
        ("ForNextSentencePrediction", "no masked-LM head, only encoder, pooler, nsp"),
    ],
)
def test_evaluation_needs_the_heads_of_an_objective(tmp_path, corpus, refused, name, message):
    source = as_hf(tmp_path, name)
    said = refused("evaluate", source, "--corpus", corpus)
    assert said.endswith(f"has {message}")


def test_a_masked_lm_alone_is_evaluated_as_one(tmp_path, corpus, exported, capsys):
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        whole = load_checkpoint(exported, mesh=mesh)
        head = HEADS["ForMaskedLM"]
        params = {part: whole.params[part] for part in ("encoder", *head.parts)}
        model, words = whole.config.model, whole.tokenizer
        huggingface.write(tmp_path / "hf", params, model, head=head, tokenizer=words)
    found = []
    for source in (tmp_path / "hf", exported):
        convert("evaluate", "--json", source, "--corpus", corpus)
        found.append(json.loads(capsys.readouterr().out))
    alone, both = found
    assert both.keys() - alone.keys() == {"nsp_loss", "nsp_accuracy"}
    for name in ("mlm_loss", "mlm_accuracy", "perplexity"):
        assert alone[name] == pytest.approx(both[name], rel=1e-5)
    assert alone["loss"] == alone["mlm_loss"] < both["loss"]


# --- what is wrong: clear, and nothing written ---------------------------------------------------


def short_of_rows(directory):
    """Sixty sub-words, and embeddings for fifty."""
    tensors = load_file(directory / "model.safetensors")
    word = "bert.embeddings.word_embeddings.weight"
    tensors[word], bias = tensors[word][:50], tensors["cls.predictions.bias"][:50]
    save_file(tensors | {"cls.predictions.bias": bias}, directory / "model.safetensors")
    edit_config(directory, vocab_size=50)


def without_words(directory):
    for path in (*directory.glob("tokenizer*"), directory / "vocab.txt"):
        path.unlink()


@pytest.mark.parametrize(
    "spoil, message",
    [
        (short_of_rows, "its tokenizer has 60 ids, but its model has only 50"),
        (without_words, "needs tokenizer.json, vocab.txt"),
    ],
)
def test_a_damaged_source(tmp_path, refused, spoil, message):
    source = as_hf(tmp_path)
    spoil(source)
    before = sorted(tmp_path.iterdir())
    assert message in refused("export", source, "--output-dir", tmp_path / "new")
    assert sorted(tmp_path.iterdir()) == before


def test_a_tf1_prefix_is_a_checkpoint(tmp_path, capsys):
    source = as_tf1(tmp_path)
    convert("fill-mask", source / "bert_model.ckpt", "w1 [MASK] w2")
    assert "w1 [MASK] w2" in capsys.readouterr().out
    shutil.rmtree(source)
    code = main(["fill-mask", str(source / "bert_model.ckpt"), "w1 [MASK]"])
    assert code == 2 and "no such directory" in capsys.readouterr().err


@pytest.mark.parametrize("format", ["hf", "tf1"])
def test_a_full_disk_is_one_line(tmp_path, trained, format):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=64k none {disk}"
    alone = ["unshare", "-rm", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*alone, mount]).returncode:
        pytest.skip("no disk of a known size can be mounted here")
    words = [sys.executable, "-m", "bert_jax", "export", "--format", format]
    words += [str(trained)]
    script = f'{mount} && head -c 61440 /dev/zero > {disk}/a && exec "$@"'
    ended = subprocess.run(
        [*alone, script, "sh", *words, "--output-dir", str(disk / "out")],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == StorageFailed.exit_code, ended.stderr
    said = ended.stderr.splitlines()[-1]
    assert said.startswith(f"bert-jax export: error: {disk}/out")
    assert said.endswith("No space left on device")
