"""`bert-jax import` and `export`: every way through, and runs that go on elsewhere."""

import dataclasses
import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax import config_loader
from bert_jax.__main__ import main
from bert_jax.config import HeadConfig, to_dict
from bert_jax.config_loader import load_config_json
from bert_jax.errors import StorageFailed
from bert_jax.interchange import huggingface, tf1
from bert_jax.interchange.name_map import ImportedModel
from bert_jax.model import sharding
from bert_jax.pretrained.import_export import import_checkpoint
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.workdir import checkpoint
from tests import tiny_corpus
from tests.interchange.test_tf1 import variables
from tests.models import HEADS, SIZES, assert_same, random_params, vocabulary


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
    params, *moments = (random_params(model, head, seed=s) for s in range(3))
    foreign = ImportedModel(model=model, head=head, params=params, moments=tuple(moments), step=77)
    tf1.write(folder / "tf1", foreign, tokenizer=vocabulary(folder / "words"))
    return folder / "tf1"


def as_hf(folder, name="ForPreTraining"):
    model, head = SIZES["small"], HEADS[name]
    params = random_params(model, head)
    words = vocabulary(folder / "words")
    huggingface.write(folder / "hf", params, model, head=head, tokenizer=words)
    return folder / "hf"


def assert_same_variables(a, b) -> None:
    a, b = (variables(directory / "bert_model.ckpt") for directory in (a, b))
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert value.dtype == b[name].dtype and value.tobytes() == b[name].tobytes(), name


# --- the ways through ----------------------------------------------------------------------------


def test_round_and_round(tmp_path):
    """TF1, workdir, Hugging Face, workdir, TF1: parameters, moments and step, bit for bit."""
    first = as_tf1(tmp_path)
    convert("import", "--checkpoint", first, "--output", tmp_path / "1")
    convert(
        "export", "--checkpoint", tmp_path / "1", "--output", tmp_path / "hf", "--moments", "yes"
    )
    convert("import", "--checkpoint", tmp_path / "hf", "--output", tmp_path / "2")
    for number in (1, 2):
        output = tmp_path / f"tf1-{number}"
        convert(
            "export", "--format", "tf1", "--checkpoint", tmp_path / str(number), "--output", output
        )
        assert_same_variables(first, output)
        for file in ("vocab.txt", "bert_config.json"):
            assert (first / file).read_bytes() == (output / file).read_bytes()
    assert variables(tmp_path / "tf1-2/bert_model.ckpt")["global_step"] == 77
    # Without a workdir between them.
    convert(
        "export", "--format", "tf1", "--checkpoint", tmp_path / "hf", "--output", tmp_path / "3"
    )
    assert_same_variables(first, tmp_path / "3")


def test_an_import_that_is_cut_short_is_no_run(tmp_path, trained, corpus, monkeypatch):
    """Or `pretrain` would begin in it, with fresh weights."""
    convert("export", "--format", "tf1", "--checkpoint", trained, "--output", tmp_path / "tf1")

    def full(*_, **__):
        raise StorageFailed("no space left")

    monkeypatch.setattr(checkpoint.Checkpoints, "save", full)
    config = config_loader.load_config(str(trained / "config.json"), ["phases.1.steps=5000"])
    with pytest.raises(StorageFailed):
        import_checkpoint(
            tmp_path / "tf1", tmp_path / "home", config=config, corpus_directory=corpus
        )
    assert not (tmp_path / "home" / "config.json").exists()


def test_a_directory_of_both_formats(tmp_path):
    """The one that is asked for is read; without a wish, Hugging Face's."""
    as_tf1(tmp_path)
    both = shutil.copytree(tmp_path / "tf1", tmp_path / "both")
    for path in as_hf(tmp_path).iterdir():
        shutil.copy(path, both / path.name)
    steps = {}
    for name, options in (("tf1", ["--format", "tf1"]), ("hf", ["--format", "hf"]), ("auto", [])):
        convert("import", "--checkpoint", both, "--output", tmp_path / f"run-{name}", *options)
        steps[name] = checkpoint.steps(tmp_path / f"run-{name}")
    assert steps == {"tf1": [77], "hf": [0], "auto": [0]}


@pytest.mark.parametrize("name", sorted(HEADS.keys() - {"Model"}))
def test_every_class_through_a_workdir(tmp_path, name):
    source = as_hf(tmp_path, name)
    convert("import", "--checkpoint", source, "--output", tmp_path / "workdir")
    convert("export", "--checkpoint", tmp_path / "workdir", "--output", tmp_path / "back")
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (source / file).read_bytes() == (tmp_path / "back" / file).read_bytes()
    config = json.loads((tmp_path / "workdir/config.json").read_text())["config"]
    assert config["head"] == to_dict(HEADS[name])


def test_a_run_of_tf1_goes_on(tmp_path, trained, corpus):
    """Our run, out to TF1 in the middle and in again, ends with the bits of the unbroken one."""
    last = max(checkpoint.steps(trained))
    middle = checkpoint.steps(trained)[0]
    assert middle < last
    out = tmp_path / "tf1"
    convert(
        "export",
        "--format",
        "tf1",
        "--checkpoint",
        trained / "checkpoints" / str(middle),
        "--output",
        out,
    )
    config = trained / "config.json"
    home = tmp_path / "home"
    convert("import", "--checkpoint", out, "--output", home, "--config", config, "--corpus", corpus)
    assert checkpoint.steps(home) == [middle]
    convert("pretrain", config, "--corpus", corpus, "--workdir", home)
    assert max(checkpoint.steps(home)) == last
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        ends = [load_checkpoint(path, mesh=mesh) for path in (trained, home)]
    assert_same(ends[0].params, ends[1].params)


def test_moments_are_written_where_there_are_any(tmp_path, trained, refused):
    source = as_hf(tmp_path)
    convert("export", "--checkpoint", source, "--format", "tf1", "--output", tmp_path / "tf1")
    assert not [n for n in variables(tmp_path / "tf1/bert_model.ckpt") if "adam" in n]
    convert("import", "--checkpoint", source, "--output", tmp_path / "workdir")
    for path in (source, tmp_path / "workdir"):
        said = refused(
            "export", "--checkpoint", path, "--output", tmp_path / "x", "--moments", "yes"
        )
        assert said == f"--checkpoint {path} has no moments of Adam to write"
    convert("export", "--checkpoint", trained, "--format", "tf1", "--output", tmp_path / "1")
    found = variables(tmp_path / "1/bert_model.ckpt")
    assert np.ptp(found["bert/pooler/dense/kernel/adam_v"]) > 0
    convert(
        "export",
        *("--checkpoint", trained, "--format", "tf1", "--output", tmp_path / "2"),
        *("--moments", "no"),
    )
    assert not [n for n in variables(tmp_path / "2/bert_model.ckpt") if "adam" in n]


def test_files_and_types_of_an_export(tmp_path, trained):
    convert(
        "export",
        *("--checkpoint", trained, "--output", tmp_path / "hf"),
        *("--dtype", "bfloat16", "--max-file-size", "0.02"),
    )
    files = list((tmp_path / "hf").glob("model-*.safetensors"))
    assert len(files) > 1
    modes = {path.stat().st_mode for path in (*files, tmp_path / "hf/config.json")}
    assert len(modes) == 1, "others may read the weights, too"
    assert huggingface.read(tmp_path / "hf").head == HeadConfig()


# --- heads that are not there --------------------------------------------------------------------


def test_an_encoder_without_heads(tmp_path, refused, capsys):
    source = as_hf(tmp_path, "Model")
    said = refused("import", "--checkpoint", source, "--output", tmp_path / "workdir")
    assert "has no head: it lacks cls.predictions.bias, " in said
    assert "cls.seq_relationship.weight; --allow-missing-heads" in said
    assert not (tmp_path / "workdir").exists()
    convert(
        "import", "--checkpoint", source, "--output", tmp_path / "workdir", "--allow-missing-heads"
    )
    assert "encoder, pooler; step 0, without moments" in capsys.readouterr().out
    said = refused("fill-mask", "--checkpoint", tmp_path / "workdir", "w1 [MASK] w2")
    assert said.endswith("has no masked-LM head: it holds encoder, pooler")


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
    config = dataclasses.replace(source.config, model=model)
    config = tiny_corpus.write_config(tmp_path / "tiny.json", config)
    command = ("pretrain", config, "--corpus", corpus, "--workdir", tmp_path / "new")
    command = (*command, "--init-from", tmp_path / "hf", "--set", "phases.0.steps=2")
    command = (*command, "--set", "phases.1.steps=1", "--set", "optimizer.warmup_steps=1")
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
    assert "2 tensors are ignored: cls.chain.bias, cls.chain.weight" in said
    assert "has no mlm, nsp: fresh, from seed" in said
    assert max(checkpoint.steps(tmp_path / "new")) == 3
    ran = load_config_json(tmp_path / "new/config.json").model
    assert ran == dataclasses.replace(source.config.model, hidden_dropout_prob=0.3)
    # The run has its model now: neither the checkpoint nor its name is needed.
    shutil.rmtree(tmp_path / "hf")
    convert(*command)
    convert(*(part for part in command if part not in ("--init-from", tmp_path / "hf")))
    assert "is already at its last step, 3" in capsys.readouterr().err


def test_weights_that_are_pickled_and_a_model_without_its_tokenizer(tmp_path, refused):
    """The weights are converted in place, so that the directory still lacks the tokenizer."""
    source = as_hf(tmp_path, "Model")
    weights = source / "model.safetensors"
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    for name in ("vocab.txt", "tokenizer.json"):
        (source / name).unlink()
    said = refused("fill-mask", "--checkpoint", source, "a [MASK]")
    assert "AutoTokenizer" not in said and "save the tokenizer to the same directory" in said
    weights.unlink()
    said = refused("fill-mask", "--checkpoint", source, "a [MASK]")
    assert "pytorch_model.bin is pickled, and pickles are never read" in said
    assert f"with config.json and the tokenizer in {source}, and name that directory" in said


def test_a_workdir_is_not_imported(tmp_path, trained, refused):
    step = next(path for path in (trained / "checkpoints").iterdir() if path.name.isdecimal())
    for source in (trained, step):
        said = refused("import", "--checkpoint", source, "--output", tmp_path / "again")
        assert said == f"--checkpoint {source} is of bert-jax itself: other verbs read it as it is"


def test_a_tokenizer_that_is_not_the_models(tmp_path, trained, refused):
    source = as_hf(tmp_path, "ForPreTraining")
    path = source / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token_id": 3}))
    said = refused("fill-mask", "--checkpoint", source, "a [MASK]")
    assert "pad_token_id is 3 in config.json, but 0 in its tokenizer (tokenizer.json)" in said
    workdir = shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(workdir / "tokenizer")
    shutil.copytree(source, workdir / "tokenizer")
    said = refused("fill-mask", "--checkpoint", workdir, "a [MASK]")
    assert "config.json says that it was trained with tokenizer " in said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Model", "no masked-LM head and the next-sentence head: it holds encoder, pooler"),
        ("ForNextSentencePrediction", "no masked-LM head: it holds encoder, pooler, nsp"),
    ],
)
def test_evaluation_needs_the_heads_of_an_objective(tmp_path, corpus, refused, name, message):
    source = as_hf(tmp_path, name)
    said = refused("evaluate", "--checkpoint", source, "--corpus", corpus)
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
        convert("evaluate", "--json", "--checkpoint", source, "--corpus", corpus)
        found.append(json.loads(capsys.readouterr().out))
    alone, both = found
    assert both.keys() - alone.keys() == {"nsp_loss", "nsp_accuracy"}
    for name in ("mlm_loss", "mlm_accuracy", "perplexity"):
        assert alone[name] == pytest.approx(both[name], rel=1e-5)
    assert alone["loss"] == alone["mlm_loss"] < both["loss"]


# --- what is wrong: clear, and nothing written ---------------------------------------------------


def truncated(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def pickled(directory):
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def mismatched(directory):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 3}))


def short_of_rows(directory):
    """Sixty sub-words, and embeddings for fifty."""
    tensors = load_file(directory / "model.safetensors")
    word = "bert.embeddings.word_embeddings.weight"
    tensors[word], bias = tensors[word][:50], tensors["cls.predictions.bias"][:50]
    save_file(tensors | {"cls.predictions.bias": bias}, directory / "model.safetensors")
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 50}))


def without_words(directory):
    for path in (*directory.glob("tokenizer*"), directory / "vocab.txt"):
        path.unlink()


@pytest.mark.parametrize(
    "spoil, message",
    [
        (truncated, "model.safetensors cannot be read: "),
        (pickled, "pickles are never read"),
        (mismatched, "missing bert.encoder.layer.2.attention.self.key.bias [24]"),
        (short_of_rows, "its tokenizer has 60 ids, but its model has embeddings for 50"),
        (without_words, "holds neither tokenizer.json nor vocab.txt"),
    ],
)
@pytest.mark.parametrize("verb", ["import", "export"])
def test_a_damaged_source(tmp_path, refused, verb, spoil, message):
    source = as_hf(tmp_path)
    spoil(source)
    before = sorted(tmp_path.iterdir())
    assert message in refused(verb, "--checkpoint", source, "--output", tmp_path / "new")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--format", "tf1"), "is a Hugging Face directory, not what --format tf1 names"),
        (("--config", "bert_base"), "--config and --corpus go together"),
        (("--set", "seed=1"), "--set changes a field of --config; name one"),
    ],
)
def test_options_that_do_not_fit(tmp_path, refused, arguments, message):
    source = as_hf(tmp_path)
    said = refused("import", "--checkpoint", source, "--output", tmp_path / "new", *arguments)
    assert message in said
    assert not (tmp_path / "new").exists()


def test_a_run_that_the_checkpoint_does_not_fit(tmp_path, trained, corpus, refused):
    convert("export", "--checkpoint", trained, "--format", "tf1", "--output", tmp_path / "tf1")
    command = ("import", "--checkpoint", tmp_path / "tf1", "--output", tmp_path / "new")
    command = (*command, "--config", trained / "config.json", "--corpus")
    said = refused(*command, corpus)
    step = max(checkpoint.steps(trained))
    assert f"is at step {step}, but config 'tiny' ends at {step}; give it more steps" in said
    said = refused(*command, corpus, "--set", "model.hidden_act=gelu")
    assert "model.hidden_act is 'gelu', the checkpoint's 'gelu_new'" in said
    source = as_tf1(tmp_path / "other")
    said = refused(
        *("import", "--checkpoint", source, "--output", tmp_path / "new"),
        *("--config", trained / "config.json", "--corpus", corpus),
    )
    assert "model.vocab_size is 240, the checkpoint's 64" in said
    assert not (tmp_path / "new").exists()


def test_a_tf1_prefix_is_a_checkpoint(tmp_path, capsys):
    source = as_tf1(tmp_path)
    convert("fill-mask", "--checkpoint", source / "bert_model.ckpt", "w1 [MASK] w2")
    assert "w1 [MASK] w2" in capsys.readouterr().out
    shutil.rmtree(source)
    code = main(["fill-mask", "--checkpoint", str(source / "bert_model.ckpt"), "w1 [MASK]"])
    assert code == 2 and "no such directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [("export", "--format", "hf"), ("export", "--format", "tf1"), ("import",)]
)
def test_a_full_disk_is_one_line(tmp_path, trained, exported, command):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=64k none {disk}"
    alone = ["unshare", "-rm", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*alone, mount]).returncode:
        pytest.skip("no disk of a known size can be mounted here")
    source = exported if command == ("import",) else trained
    words = [sys.executable, "-m", "bert_jax", *command, "--checkpoint", str(source)]
    script = f'{mount} && head -c 61440 /dev/zero > {disk}/a && exec "$@"'
    ended = subprocess.run(
        [*alone, script, "sh", *words, "--output", str(disk / "out")],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == StorageFailed.exit_code, ended.stderr
    said = ended.stderr.splitlines()[-1]
    assert said.startswith(f"bert-jax {command[0]}: error: {disk}/out")
    assert said.endswith("No space left on device")
