"""Names of the hub are resolved in its local cache, and nothing is downloaded."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

import bert_jax
from bert_jax.__main__ import main
from bert_jax.config_loader import load_config
from bert_jax.data.tokenizer import hub
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.interchange import safetensors_files


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, without network access."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def put(cache: Path, name: str, directory: Path) -> None:
    """Stores a model like the hub's client: a snapshot of links, and a name for it."""
    home = cache / f"models--{name.replace('/', '--')}"
    (home / "snapshots" / "c0ffee").mkdir(parents=True)
    (home / "blobs").mkdir()
    for file in directory.iterdir():
        shutil.copy(file, home / "blobs" / file.name)
        (home / "snapshots" / "c0ffee" / file.name).symlink_to(f"../../blobs/{file.name}")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("c0ffee")


def test_a_cached_name_is_its_directory(cache, exported, trained, tmp_path):
    put(cache, "some/encoder", exported)
    put(cache, "encoder", exported)
    found = bert_jax.load("some/encoder").embed("The horse eats hay.")
    np.testing.assert_array_equal(found, bert_jax.load(exported).embed("The horse eats hay."))
    assert load_tokenizer("encoder").hash == load_tokenizer(exported).hash
    # A folder with this name has priority.
    (tmp_path / "encoder").mkdir()
    assert hub.located("encoder") == Path("encoder")
    # The card names the model's origin, data, language and license.
    shutil.copytree(trained, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    sources = ["hf://datasets/some/text@c0ffee/a.txt", "b.txt", "hf://datasets/some/text@c0ffee/b"]
    known = {"init_from": "some/encoder", "sources": ["tfds:squad/v1.1"]}
    known["corpus"] = {"language": "de", "sources": sources}
    path.write_text(json.dumps(json.loads(path.read_text()) | known))
    command = ["export", str(tmp_path / "run"), "--license", "mit"]
    command += ["--dataset", "of/ours", "--dataset", "some/text"]
    assert main([*command, "--output-dir", str(tmp_path / "out")]) == 0
    card = yaml.safe_load((tmp_path / "out" / "README.md").read_text().split("---")[1])
    assert card.pop("tags") and card == {
        "library_name": "transformers",
        "license": "mit",
        "language": "de",
        "datasets": ["some/text", "rajpurkar/squad", "of/ours"],
        "base_model": "some/encoder",
        "pipeline_tag": "fill-mask",
    }


@pytest.mark.parametrize(
    ("source", "name", "data_set"),
    [
        ("/a/hub/datasets--some--text/snapshots/c0/b/a.txt", "@c0/b/a.txt", "some/text"),
        ("/a/hub/datasets--some--text/snapshots/c0/", "@c0", "some/text"),
        ("/a/hub/datasets--text/snapshots/c0/*.parquet", "@c0/*.parquet", "text"),
        ("/a/datasets--text/a.txt", "a.txt", None),
        ("in/a: part/b.txt", "b.txt", None),
        ("docs:", "docs:", None),
        ("tfds:glue/sst2", "tfds:glue/sst2", "nyu-mll/glue"),
        ("tfds:squad/v2.0:train", "tfds:squad/v2.0:train", "rajpurkar/squad_v2"),
        ("tfds:squad_question_generation", "tfds:squad_question_generation", None),
    ],
)
def test_a_source_has_a_name_without_its_place(source, name, data_set):
    if name.startswith("@"):
        name = f"hf://datasets/{data_set}{name}"
    assert hub.source_name(source) == name
    assert hub.data_set_of(name) == data_set


def test_a_missing_name_shows_the_download_command(cache, capsys):
    assert main(["export", "bert-base-uncased", "--output-dir", "x"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.endswith(
        "bert-base-uncased: no such directory; for a model of the hub: hf download "
        "bert-base-uncased --local-dir bert-base-uncased --include '*.[jst]*'"
    )
    with pytest.raises(UsageError, match=r"the hub: hf download some/encoder --local-dir"):
        load_tokenizer("some/encoder")
    with pytest.raises(UsageError, match="and add `init_from` bert-base-uncased"):
        load_config("bert-base-uncased")
    with pytest.raises(UsageError) as error:
        bert_jax.load(cache.parent / "nothing")
    assert "hub" not in str(error.value)


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "run.ckpt"])
def test_a_pickle_is_never_read(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"cos\nsystem\n(S'touch harm'\ntR.")
    for read in (bert_jax.load, load_tokenizer):
        with pytest.raises(UsageError, match=rf"{name} is pickled, and pickles are never read"):
            read(path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parity
@pytest.mark.parametrize("names", [["pytorch_model"], ["pytorch_model-1-of-2", "pytorch_model-2"]])
def test_the_conversion_command_works(tmp_path, names):
    """With tensors that share memory or are not contiguous, which safetensors cannot write."""
    torch = pytest.importorskip("torch", reason="needs the `parity` extra")
    table = torch.arange(6.0).reshape(2, 3)
    parts = [{"embeddings": table, "decoder": table}, {"transposed": table.T}]
    if len(names) == 1:
        parts = [parts[0] | parts[1]]
    for name, part in zip(names, parts, strict=True):
        torch.save(part, tmp_path / f"{name}.bin")
    torch.save({"seed": 1}, tmp_path / "training_args.bin")
    with pytest.raises(UsageError, match="pickles are never read") as caught:
        safetensors_files.read(tmp_path)
    found = re.search(r'python -c "(.*?)", with config', str(caught.value))
    assert found is not None
    subprocess.run([sys.executable, "-c", found[1]], check=True)
    tensors = load_file(tmp_path / "model.safetensors")
    assert sorted(tensors) == ["decoder", "embeddings", "transposed"]
    for name, tensor in tensors.items():
        expected = table.T if name == "transposed" else table
        np.testing.assert_array_equal(tensor, expected.numpy())
