"""Every test runs on eight fake CPU devices, so that nothing works on one device only."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A corpus directory of the tiny stories."""
    from bert_jax.data.prepare import prepare
    from tests import tiny_corpus

    directory = tmp_path_factory.mktemp("corpus")
    source = tiny_corpus.write(directory / "stories.txt")
    prepare([str(source)], directory / "tokens", vocab_size=240, validation_fraction=0.2, workers=1)
    return directory / "tokens"


@pytest.fixture(scope="session")
def trained(tmp_path_factory, corpus) -> Path:
    """The workdir of a finished run of `tiny_config` on it, by the command line."""
    from bert_jax.__main__ import main
    from tests import tiny_corpus

    directory = tmp_path_factory.mktemp("trained")
    config = tiny_corpus.write_config(directory / "tiny.json", tiny_corpus.tiny_config())
    workdir = directory / "workdir"
    arguments = ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(workdir)]
    assert main(arguments) == 0
    return workdir


@pytest.fixture(scope="session")
def exported(tmp_path_factory, trained) -> Path:
    """The Hugging Face directory made from that run."""
    from bert_jax.__main__ import main

    directory = tmp_path_factory.mktemp("exported") / "hf"
    assert main(["export", "--checkpoint", str(trained), "--output", str(directory)]) == 0
    return directory
