"""RoBERTa out and in again: names, the unused rows of positions, one segment, files; the config."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from bert_jax.data.tasks.conll import Sentence
from bert_jax.data.tasks.encode_rows import encode_words
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.data.tokenizer.training import train_tokenizer
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface
from bert_jax.pretrained.load import foreign_config
from tests.models import HEADS, SIZES, assert_same, edit_config, random_params, vocabulary

CLASSES = sorted(HEADS.keys() - {"ForPreTraining", "ForNextSentencePrediction"})
_ONE_SEGMENT = dataclasses.replace(
    SIZES["small"], vocab_size=300, type_vocab_size=1, hidden_act="gelu"
)
_POSITIONS = "roberta.embeddings.position_embeddings.weight"


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A directory of byte-level sub-words."""
    folder = tmp_path_factory.mktemp("words") / "bpe"
    train_tokenizer("bpe", [" the bear eats honey, a bee too"] * 3, vocab_size=300).save(folder)
    return folder


def written(folder, words, name, model=_ONE_SEGMENT, **options):
    params = random_params(model, HEADS[name])
    huggingface.write(folder, params, model, head=HEADS[name], tokenizer=words, **options)
    return params, load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", CLASSES)
def test_a_byte_level_vocabulary_makes_a_roberta(tmp_path, words, name):
    tensors, described = out_and_in(tmp_path, words, _ONE_SEGMENT, HEADS[name])
    assert described["architectures"] == [f"Roberta{name}"]
    assert described["model_type"] == "roberta" and described["type_vocab_size"] == 1
    assert described["max_position_embeddings"] == 22  # 20, behind two that are not used
    ids = [described[f"{token}_token_id"] for token in ("bos", "pad", "eos")]
    assert ids == [0, 1, 2]
    table = tensors[_POSITIONS if name != "Model" else _POSITIONS.removeprefix("roberta.")]
    assert table.shape == (22, 24) and not table[:2].any() and table[2:].all()
    assert foreign_config(huggingface.read(tmp_path / "1")).data.sequence_format == "full_sentences"


def test_positions_begin_after_the_padding(tmp_path, words):
    params, tensors = written(tmp_path / "hf", words, "ForMaskedLM")
    tensors[_POSITIONS] = np.pad(tensors[_POSITIONS], ((2, 0), (0, 0)))
    save_file(tensors, tmp_path / "hf/model.safetensors")
    edit_config(tmp_path / "hf", pad_token_id=3, max_position_embeddings=24)
    assert_same(huggingface.read(tmp_path / "hf").params, params)
    edit_config(tmp_path / "hf", pad_token_id=-1)
    with pytest.raises(UsageError, match="pad_token_id is -1, but"):
        huggingface.read(tmp_path / "hf")


def test_a_pooler_that_a_classifier_does_not_use(tmp_path, words):
    params, tensors = written(tmp_path / "hf", words, "ForSequenceClassification")
    extra = {"roberta.pooler.dense.weight": np.zeros((24, 24), np.float32)}
    save_file(tensors | extra, tmp_path / "hf/model.safetensors")
    assert_same(huggingface.read(tmp_path / "hf").params, params)


@pytest.mark.parametrize("name", ["ForTokenClassification", "ForMaskedLM"])
def test_words_of_a_sentence_begin_as_in_running_text(tmp_path, words, name):
    """A space is part of the word after it, also in the tokenizer of an exported tagger."""
    sentence = Sentence("line 1", ("the", "bear", "eats"), None)
    rows = encode_words([sentence], load_tokenizer(words), length=16, labels=None)
    ids = rows.features.input_ids[0][: rows.features.lengths[0]].tolist()
    written(tmp_path / "hf", words, name)
    taken = Tokenizer.from_file(str(tmp_path / "hf/tokenizer.json"))
    assert ids == taken.encode(" the bear eats").ids
    found = taken.encode(list(sentence.words), is_pretokenized=True).ids
    assert (found == ids) == (name == "ForTokenClassification")
    again = encode_words([sentence], load_tokenizer(tmp_path / "hf"), length=16, labels=None)
    assert again.features.input_ids[0].tolist() == rows.features.input_ids[0].tolist()


def test_the_family_that_is_asked_for(tmp_path, words):
    for model_type, prefix in (("bert", "Bert"), ("xlm-roberta", "XLMRoberta")):
        folder = tmp_path / model_type
        params, tensors = written(folder, words, "ForMaskedLM", model_type=model_type)
        described = json.loads((folder / "config.json").read_text())
        assert described["architectures"] == [f"{prefix}ForMaskedLM"]
        assert (_POSITIONS in tensors) == (model_type != "bert")
        assert_same(huggingface.read(folder).params, params)
    # A model of sentence pairs is a BERT, whatever its vocabulary.
    two = dataclasses.replace(_ONE_SEGMENT, type_vocab_size=2)
    written(tmp_path / "pairs", words, "ForPreTraining", two)
    assert json.loads((tmp_path / "pairs/config.json").read_text())["model_type"] == "bert"
    with pytest.raises(UsageError, match=r"head\.parts nsp"):
        written(tmp_path / "no", words, "ForPreTraining", two, model_type="roberta")
    with pytest.raises(UsageError, match=r"'robert'.* Did you mean 'roberta'"):
        written(tmp_path / "no", words, "ForMaskedLM", model_type="robert")


def test_a_head_that_their_class_would_compute_otherwise(tmp_path, words, capsys):
    """RobertaLMHead has the exact GELU, whatever hidden_act is."""
    by_tanh = dataclasses.replace(_ONE_SEGMENT, hidden_act="gelu_new")
    written(tmp_path / "1", words, "ForMaskedLM", by_tanh)
    assert json.loads((tmp_path / "1/config.json").read_text())["model_type"] == "bert"
    assert "model_type bert, not roberta: hidden_act" in capsys.readouterr().err
    message = "hidden_act is gelu_new, but the masked-LM head of Roberta .* uses gelu"
    with pytest.raises(UsageError, match=message):
        written(tmp_path / "2", words, "ForMaskedLM", by_tanh, model_type="roberta")
    written(tmp_path / "3", words, "ForTokenClassification", by_tanh)
    assert json.loads((tmp_path / "3/config.json").read_text())["model_type"] == "roberta"
    written(tmp_path / "4", words, "ForMaskedLM")
    edit_config(tmp_path / "4", hidden_act="gelu_new")
    with pytest.raises(UsageError, match=message):
        huggingface.read(tmp_path / "4")


@pytest.mark.parametrize("segments", [1, 2])
def test_the_tokenizer_says_whether_there_are_segments(tmp_path, words, segments):
    """Where there is one, a second number of a segment would be an error in their classes."""
    transformers = pytest.importorskip("transformers", reason="needs the `dev` extra")
    model = dataclasses.replace(_ONE_SEGMENT, type_vocab_size=segments)
    written(tmp_path / "hf", words, "ForMaskedLM", model)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    found = theirs("the bear", "eats honey")
    assert found.input_ids.count(2) == 3, "<s> a </s> </s> b </s>"
    assert found.get("token_type_ids", [0])[-1] == segments - 1
    assert load_tokenizer(tmp_path / "hf").hash == load_tokenizer(words).hash
    assert theirs.model_max_length == 20


@pytest.mark.parametrize("name", CLASSES)
def test_norms_that_come_first_make_a_pre_layer_norm(tmp_path, words, name):
    model = dataclasses.replace(_ONE_SEGMENT, norm_placement="pre")
    tensors, described = out_and_in(tmp_path, words, model, HEADS[name])
    assert described["architectures"] == [f"RobertaPreLayerNorm{name}"]
    assert described["model_type"] == "roberta-prelayernorm"
    base = "" if name == "Model" else "roberta_prelayernorm."
    assert f"{base}LayerNorm.weight" in tensors
    assert f"{base}encoder.layer.1.intermediate.LayerNorm.bias" in tensors


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"Model"}))
@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
def test_rotary_positions_make_a_roformer(tmp_path, words, name, act):
    model = dataclasses.replace(
        _ONE_SEGMENT, position_embedding_type="rotary_interleaved", hidden_act=act
    )
    head = HEADS[name]
    if name != "ForMaskedLM":  # a model of a task stays of its family
        # Its classifier has the activation of the blocks.
        head = huggingface.with_classifier(model, HEADS["ForMaskedLM"], head)
        assert head.pooler_act == act
    tensors, described = out_and_in(tmp_path, words, model, head)
    assert described["architectures"] == [f"RoFormer{name}"]
    assert described["model_type"] == "roformer" and "position_embedding_type" not in described
    sines = tensors["roformer.encoder.embed_positions.weight"]
    assert sines.shape == (20, 6) and sines[0].tolist() == [0, 0, 0, 1, 1, 1]


def out_and_in(folder, words, model, head):
    """The tensors and the config of what is written; read, it is the same, and written again."""
    params = random_params(model, head)
    huggingface.write(folder / "1", params, model, head=head, tokenizer=words)
    back = huggingface.read(folder / "1")
    assert (back.model, back.head) == (model, head)
    assert_same(back.params, params)
    huggingface.write(folder / "2", back.params, back.model, head=back.head, tokenizer=words)
    for file in ("model.safetensors", "config.json", "vocab.json", "merges.txt"):
        assert (folder / "2" / file).read_bytes() == (folder / "1" / file).read_bytes()
    described = json.loads((folder / "1/config.json").read_text())
    return load_file(folder / "1" / "model.safetensors"), described


_ROFORMER = {"position_embedding_type": "rotary_interleaved"}
_PRE_NORM = {"norm_placement": "pre"}


@pytest.mark.parametrize(
    ("changes", "name", "options", "message"),
    [
        (_ROFORMER, "ForPreTraining", {}, "head.parts pooler, nsp"),
        (_ROFORMER, "ForSequenceClassification", {}, "pooler_act is tanh, which this format"),
        (_ROFORMER | {"rope_theta": 1000.0}, "ForMaskedLM", {}, r"model\.rope_theta is 1000"),
        ({"position_embedding_type": "rotary"}, "ForMaskedLM", {}, "does not support"),
        (_PRE_NORM, "ForPreTraining", {}, "head.parts nsp"),
        (
            _PRE_NORM | {"norm": "rmsnorm", "norm_bias": False}, "ForMaskedLM", {},
            r"model\.norm is rmsnorm, model\.norm_bias is false",
        ),
        ({}, "ForMaskedLM", {"model_type": "roberta-prelayernorm"}, "norm_placement is post"),
        (_PRE_NORM, "ForMaskedLM", {"model_type": "bert"}, "norm_placement is pre"),
    ],
)  # fmt: skip
def test_what_a_family_cannot_express(tmp_path, words, changes, name, options, message):
    model = dataclasses.replace(_ONE_SEGMENT, **changes)
    with pytest.raises(UsageError, match=message):
        written(tmp_path / "hf", words, name, model=model, **options)
    assert not (tmp_path / "hf").exists()


def test_a_roformer_that_rotates_values_is_refused(tmp_path, words):
    model = dataclasses.replace(_ONE_SEGMENT, **_ROFORMER)
    written(tmp_path / "hf", words, "ForMaskedLM", model=model)
    edit_config(tmp_path / "hf", rotary_value=True)
    with pytest.raises(UsageError, match="rotary_value is True"):
        huggingface.read(tmp_path / "hf")


def test_other_vocabularies_make_a_bert(tmp_path):
    params, _ = written(tmp_path / "hf", vocabulary(tmp_path / "words"), "ForMaskedLM")
    assert json.loads((tmp_path / "hf/config.json").read_text())["model_type"] == "bert"
    assert_same(huggingface.read(tmp_path / "hf").params, params)
