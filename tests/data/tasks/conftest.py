"""A vocabulary of twenty words, for the tests of this folder."""

import pytest

from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer

_WORDS = "the a cat cats sat on mat hat and who where did ##s ##ed play red blue , . ?"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS.split()]) + "\n"
    )
    return load_tokenizer(path)
