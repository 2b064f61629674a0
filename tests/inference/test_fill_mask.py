"""fill-mask: the most probable tokens of each masked place, best first."""

import gzip
import json

import jax
import numpy as np
import pytest

from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.inference import fill_mask as module
from bert_jax.inference.fill_mask import fill_mask
from bert_jax.model import sharding
from bert_jax.pretrained.load import load_checkpoint
from tests.golden import make_tokenizer_directories as directories
from tests.models import apply

pytestmark = pytest.mark.core

DIRECTORIES = json.loads(gzip.decompress(directories.FILE.read_bytes()))
SPECIALS = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}


@pytest.fixture(scope="module")
def loaded(trained):
    """A function of (text, options), with the trained model on one or eight devices."""

    def run(text, *, devices: int = 8, **options):
        mesh = sharding.make_mesh(fsdp=devices, tensor=1, devices=jax.local_devices()[:devices])
        with jax.set_mesh(mesh):
            checkpoint = load_checkpoint(trained, mesh=mesh)
            return fill_mask(checkpoint, load_tokenizer(checkpoint.tokenizer), text, **options)

    return run


def test_candidates_are_those_of_the_model(loaded, trained):
    """The same sentence through the model by hand, on one device and without copies."""
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        checkpoint = load_checkpoint(trained, mesh=mesh)
        sub_words = load_tokenizer(checkpoint.tokenizer)
        ids = sub_words.encode("In winter the bear sleeps in the [MASK].")
        place = ids.index(sub_words.special.mask)
        batch = {
            "input_ids": np.array([ids]),
            "token_type_ids": np.zeros((1, len(ids)), int),
            "position_ids": np.arange(len(ids))[None],
            "sequence_ids": np.ones((1, len(ids)), int),
            "mlm_positions": np.array([[place]]),
            "nsp_positions": np.array([[0]]),
        }
        batch = jax.device_put(batch, sharding.batch_sharding(mesh))
        config = checkpoint.config
        found = apply(checkpoint.params, batch, config=config.model, compute=config.compute)
        logits = found["mlm_logits"]
    best = int(np.argmax(np.asarray(logits)[0, 0, : sub_words.vocab_size]))
    (candidates,) = loaded("In winter the bear sleeps in the [MASK].")
    assert candidates[0].token == sub_words.tokens([best])[0]


def test_any_number_of_devices_gives_the_same(loaded):
    text = "The [MASK] eats honey every day."
    (one,), (eight,) = loaded(text, devices=1), loaded(text, devices=8)
    assert [c.token for c in one] == [c.token for c in eight]
    for a, b in zip(one, eight, strict=True):
        assert a.probability == pytest.approx(b.probability, rel=1e-4)


def test_several_masks_are_filled_one_at_a_time(loaded):
    text = "The [MASK] eats [MASK] every day."
    first, second = loaded(text, top=2)
    for candidate in first:
        assert candidate.text == f"The {candidate.token} eats [MASK] every day."
    for candidate in second:
        assert candidate.text == f"The [MASK] eats {candidate.token} every day."


def test_the_text_stays_as_it_was_given(loaded):
    """Capitals, words of no vocabulary, spaces, marks; a piece of a word joins the one before, a
    word stands apart, and a special token writes nothing.
    """
    before = "Qu\u0301\u6f22  \U0001f40e says:  a sta"
    for space in ("", " "):
        ((*candidates,),) = loaded(f"{before}{space}[MASK].", top=227)
        for candidate in candidates:
            piece = candidate.token.removeprefix("##")
            glue = "" if piece != candidate.token else " " if piece.isalnum() else space
            if candidate.token in SPECIALS:
                glue = piece = ""
            assert candidate.text == f"{before}{glue}{piece}."
        assert {c.token for c in candidates} > SPECIALS


@pytest.mark.parametrize("is_lstrip", [True, False])
@pytest.mark.parametrize(
    "name", ["roberta", "roberta-prefix", "eurobert", "modernbert", "whitespace", "xlm-roberta"]
)
def test_a_token_comes_with_its_own_space(tmp_path, monkeypatch, name, is_lstrip):
    """The text is the `sequence` of transformers' fill-mask pipeline, for all tokens: the ids with
    the token in place of the mask, decoded without special tokens.
    """
    transformers = pytest.importorskip("transformers", reason="needs the `dev` extra")
    files = DIRECTORIES[name]["files"]
    state = json.loads(files["tokenizer.json"])
    for token in state["added_tokens"]:
        token["lstrip"] = is_lstrip and "mask" in token["content"].lower()
    files = {**files, "tokenizer.json": json.dumps(state)}
    folder = directories.write(files, tmp_path / name)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    ours, size = load_tokenizer(folder), len(theirs)
    monkeypatch.setattr(module, "require_parts", lambda *_: None)
    monkeypatch.setattr(module, "probabilities_of", lambda *_, **__: np.ones((1, size)))
    texts = ["is de {} van", "is de{} van", "De {}"]
    # Others put a space before a text, and behind a mask, that the text does not have.
    texts += ["{} is", "({}), is"] if name in ("roberta", "eurobert", "modernbert") else []
    begun = theirs.decode(theirs("is").input_ids, skip_special_tokens=True).removesuffix("is")
    for text in (text.format(theirs.mask_token) for text in texts):
        (found,) = fill_mask(None, ours, text, top=size, forward=object())
        ids = theirs(text).input_ids
        for number, candidate in enumerate(found):
            filled = [number if id_ == theirs.mask_token_id else id_ for id_ in ids]
            sequence = theirs.decode(filled, skip_special_tokens=True)
            assert candidate.text == sequence.removeprefix(begun), text


def test_a_text_without_mask_is_refused(loaded):
    with pytest.raises(UsageError, match=r"has no \[MASK\]; put \[MASK\] in place"):
        loaded("The horse eats hay.")


def test_a_text_longer_than_the_position_table_is_refused(loaded):
    longest = "horse " * 45 + "[MASK]"  # with [CLS] and [SEP] 48 tokens
    assert len(loaded(longest)) == 1
    with pytest.raises(UsageError, match="the text has 49 tokens, the model 48 positions"):
        loaded("horse " + longest)
