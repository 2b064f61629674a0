"""The ids, offsets and words of many kinds of tokenizer directories equal those of transformers 4
and 5 (golden/make_tokenizer_directories.py).
"""

import gzip
import itertools
import json

import numpy as np
import pytest

from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.data.tokenizer.words import begins_word
from bert_jax.errors import UsageError
from tests.golden.make_tokenizer_directories import FILE, LINES, write

GOLDEN = json.loads(gzip.decompress(FILE.read_bytes()))
# Rejected directories, and the fix in the error.
REFUSED = {
    "albert-model": r'AlbertTokenizer, which gives other .*: python -c "from transformers import',
    "bert-default": r'write "do_lower_case": false in .*: python -c "from transformers import',
    "deberta-model": r'DebertaV2Tokenizer, which gives other .*: python -c "from transformers imp',
    "roformer": r"where the model was trained with BertTokenizer, write that class there",
}
# Directories with other ids in the two versions of transformers: the version that is followed.
ONE_VERSION = {
    "roberta-files": "4",  # in 5 RoBERTa's mask does not absorb the space before it
}
# In the library's offsets each word lacks its first letter; here no word does.
MISPLACED = "whitespace-trim"
# Token names that do not show word starts.
WITHOUT_MARKS = "no-marks"


@pytest.mark.parametrize("name", sorted(GOLDEN.keys() - REFUSED))
def test_ids_and_offsets_equal_those_of_transformers(tmp_path, name):
    """Ignoring white space around a token, which some files count as part of the token."""
    tokenizer = load_tokenizer(write(GOLDEN[name]["files"], tmp_path / name))
    for version in ONE_VERSION.get(name, "45"):
        theirs = GOLDEN[name][version]
        assert [tokenizer.encode("hay")] == theirs["pair"][:1]
        for line, ids, places in zip(LINES, theirs["ids"], theirs["offsets"], strict=True):
            ours = tokenizer.encode_with_offsets(line)
            assert ours[0] == ids, ascii(line)
            # A separate "▁" is at the space, or at the letter after it.
            kept = [token != "▁" for token in tokenizer.tokens(ids)]
            cut, expected = (
                [line[a:b].strip() for a, b in itertools.compress(spans, kept)]
                for spans in (ours[1], places)
            )
            assert cut == expected or name == MISPLACED, ascii(line)
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.hash == tokenizer.hash
    assert again.encode_sentences(LINES) == tokenizer.encode_sentences(LINES)


@pytest.mark.parametrize("name", sorted(GOLDEN.keys() - REFUSED))
def test_tokens_make_up_the_words_of_a_text(tmp_path, name):
    tokenizer = load_tokenizer(write(GOLDEN[name]["files"], tmp_path / name))
    line = "De toren in Utrecht is oud"
    ids, spans = tokenizer.encode_with_offsets(line)
    begins = begins_word(tokenizer)[ids]
    if name == WITHOUT_MARKS:
        assert begins.all()
        return
    first = np.array([True, *begins[1:]])
    starts = [a for (a, _), is_first in zip(spans, first, strict=True) if is_first]
    ends = [*starts[1:], len(line)]
    assert [line[a:b].strip() for a, b in zip(starts, ends, strict=True)] == line.split()


@pytest.mark.parametrize(("name", "message"), REFUSED.items())
def test_classes_with_other_ids_are_rejected_with_the_fix(tmp_path, name, message):
    with pytest.raises(UsageError, match=message) as caught:
        load_tokenizer(write(GOLDEN[name]["files"], tmp_path / name))
    assert "\n" not in str(caught.value)


def test_wrong_offsets_are_rejected(tmp_path):
    files = dict(GOLDEN["bert-cased"]["files"])
    state = json.loads(files["tokenizer.json"])
    state["decoder"] = {"type": "Replace", "pattern": {"String": "T"}, "content": "other"}
    files["tokenizer.json"] = json.dumps(state)
    tokenizer = load_tokenizer(write(files, tmp_path / "other"))
    assert tokenizer.encode("The")
    with pytest.raises(UsageError, match=r"tokenizer\.json returns wrong offsets: 'The' is at"):
        tokenizer.encode_with_offsets("The")
