"""Probes: attention statistics, pseudo-perplexity, minimal pairs and masked words."""

import dataclasses
import functools
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.api.model import Model, load
from bert_jax.config import ComputeConfig, HeadConfig, TrainConfig
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.model import bert, sharding
from bert_jax.model.positions import distance_bias
from bert_jax.pretrained.load import LoadedCheckpoint, load_checkpoint
from bert_jax.registry import POSITIONS
from bert_jax_lab.probes import minimal_pairs
from bert_jax_lab.probes.attention import Attention, AttentionProbe, statistics
from bert_jax_lab.probes.held_out import readable_sentences
from bert_jax_lab.probes.hidden_words import hidden_words
from bert_jax_lab.probes.minimal_pairs import MinimalPair
from bert_jax_lab.probes.pseudo_perplexity import PseudoPerplexity
from tests.golden import make_attention
from tests.model.test_positions import model_of
from tests.models import random_params, vocabulary

# Kinds that do not affect attention are equal in it: `learned` represents all of them.
_KINDS = [kind for kind in POSITIONS._builtin if kind not in ("none", "sinusoidal")] + ["modern"]
_MLM = HeadConfig(parts=("mlm",))
# The second text begins in the middle of the row if the two are packed.
_TEXTS = ("w3 w1 w4 w1 w5 w9", "w2 w6 w5")


def checkpoint(kind: str, words: Path, *, head: HeadConfig = _MLM, **changes) -> LoadedCheckpoint:
    """Returns a random model with a kind of positions, as from `load_checkpoint`."""
    changes = {"vocab_size": 60, "num_hidden_layers": 2, **changes}
    model = dataclasses.replace(model_of(kind), **changes)
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    params = random_params(model, head)
    shardings = sharding.param_shardings(params, mesh=mesh, shard_weights=True)
    return LoadedCheckpoint(
        directory=words,
        step=0,
        config=TrainConfig(
            name=kind,
            model=model,
            head=head,
            compute=ComputeConfig(layer_loop="scan", remat="full"),
        ),
        params=jax.device_put(params, shardings),
        tokenizer=words,
    )


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Path:
    return vocabulary(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def probes(words):
    """Returns a function of a kind of positions: the probe of such a model, and the model."""
    made = {}

    def probe(kind: str) -> tuple[AttentionProbe, LoadedCheckpoint]:
        if kind not in made:
            source = checkpoint(kind, words)
            made[kind] = AttentionProbe(source, load_tokenizer(words)), source
        return made[kind]

    return probe


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


# --- attention ------------------------------------------------------------------------------------


def assert_is_theirs(found: Attention, theirs: dict[str, np.ndarray]) -> None:
    """Asserts all steps of the neuron view, each within 1e-5."""
    query, key = theirs["query"], theirs["key"]
    close = functools.partial(np.testing.assert_allclose, atol=1e-5, rtol=0)
    close(found.query, query)
    close(found.key, key)
    for layer in range(len(query)):
        products = query[layer][:, :, None] * key[layer][:, None]
        ours = found.query[layer][:, :, None] * found.key[layer][:, None]
        # Two factors with the largest allowed error, relative to their size.
        close(ours, products, atol=1e-5, rtol=1e-5)
        scores = products.sum(axis=-1) / math.sqrt(query.shape[-1])
        close(found.scores(layer), scores)
        close(found.weights(layer), theirs["weights"][layer])


def test_every_step_equals_transformers(tmp_path):
    """The golden file was made by golden/make_attention.py."""
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        source = load_checkpoint(make_attention.write(tmp_path), mesh=mesh)
    probe = AttentionProbe(source, load_tokenizer(source.tokenizer))
    found = probe(make_attention.PAIR)
    assert_is_theirs(found, dict(np.load(make_attention.FILE)))
    assert found.tokens[:2] == ("[CLS]", "w3") and found.tokens.count("[SEP]") == 2
    last = probe(make_attention.PAIR, layers=[2])
    assert last.layers == (2,)
    np.testing.assert_array_equal(last.query[0], found.query[1])


@pytest.mark.parametrize("kind", _KINDS)
def test_queries_keys_and_positions_of_each_kind(kind, probes):
    """Compared with each kind's formula, on the states between the layers of the same model."""
    probe, source = probes(kind)
    found = probe([_TEXTS[0]])
    length, model = len(found.tokens), source.config.model
    config = dataclasses.replace(source.config, compute=ComputeConfig(dtype="float32"))
    states = Model(dataclasses.replace(source, config=config)).hidden_states(_TEXTS[0])
    place = np.arange(length)
    for index in range(2):
        layer = jax.device_get(source.params["encoder"][f"layer_{index}"])
        x_LD = states[index, 0, :length].astype(np.float64)
        if model.norm_placement == "pre":  # RMSNorm, as in `modern`
            x_LD = x_LD / np.sqrt(np.mean(x_LD**2, axis=-1, keepdims=True) + model.layer_norm_eps)
            x_LD = x_LD * layer["attention_norm"]["scale"]

        def heads(name, layer=layer, x_LD=x_LD):
            x_LD = x_LD @ layer[name]["kernel"] + layer[name].get("bias", 0.0)
            return np.swapaxes(x_LD.reshape(length, model.num_attention_heads, -1), 0, 1)

        query, key = heads("query"), heads("key")
        if kind in ("rotary", "rotary_interleaved", "modern"):
            query, key = (turned(x, kind, theta=model.rope_theta) for x in (query, key))
        np.testing.assert_allclose(found.query[index], query, atol=2e-5, rtol=1e-5)
        np.testing.assert_allclose(found.key[index], key, atol=2e-5, rtol=1e-5)
        expected = added(kind, source, layer, query, key, place)
        if expected is None:
            assert found.position is None
            continue
        assert found.position is not None
        np.testing.assert_allclose(found.position[index], expected, atol=2e-5, rtol=1e-5)
        scores = query @ np.swapaxes(key, 1, 2) / np.sqrt(found.head_size) + expected
        np.testing.assert_allclose(found.scores(index), scores, atol=1e-4, rtol=1e-5)


def turned(x_HLK: np.ndarray, kind: str, *, theta: float) -> np.ndarray:
    """Rotary positions as products of complex numbers."""
    size = x_HLK.shape[-1]
    angles = np.arange(x_HLK.shape[1])[:, None] * theta ** -(np.arange(0, size, 2) / size)
    pairs = (slice(0, None, 2), slice(1, None, 2))
    if kind != "rotary_interleaved":
        pairs = (slice(0, size // 2), slice(size // 2, None))
    complexes = (x_HLK[..., pairs[0]] + 1j * x_HLK[..., pairs[1]]) * np.exp(1j * angles)
    result = np.empty_like(x_HLK)
    result[..., pairs[0]], result[..., pairs[1]] = complexes.real, complexes.imag
    return result


def added(kind, source, layer, query, key, place) -> np.ndarray | None:
    """Returns the scores `[H, L, L]` that a kind adds, computed one by one."""
    heads, length, size = query.shape
    table = layer.get("position", {}).get("embedding")
    if kind == "t5":
        table = np.asarray(source.params["encoder"]["embeddings"]["position"]["embedding"])
    if kind not in ("alibi", "t5", "relative_key", "relative_key_query"):
        return None
    result = np.zeros((heads, length, length))
    for head, i, j in np.ndindex(result.shape):
        if kind == "alibi":
            result[head, i, j] = -distance_bias.alibi_slopes(heads)[head] * abs(i - j)
        elif kind == "t5":
            result[head, i, j] = table[distance_bias.t5_buckets(place[j : j + 1] - i)[0], head]
        else:
            distance = table[i - j + len(table) // 2]
            result[head, i, j] = query[head, i] @ distance / math.sqrt(size)
            if kind == "relative_key_query":
                result[head, i, j] += key[head, j] @ distance / math.sqrt(size)
    return result


@pytest.mark.parametrize("kind", ["learned", "rotary", "relative_key_query"])
def test_a_packed_sequence_has_the_same_attention_as_alone(kind, probes):
    probe, _ = probes(kind)
    both = probe(_TEXTS, packed=True)
    assert both.sequence_ids.tolist() == [1] * 8 + [2] * 5
    assert both.position_ids.tolist() == [*range(8), *range(5)]
    start = 0
    for text in _TEXTS:
        alone = probe([text])
        end = start + len(alone.tokens)
        assert both.tokens[start:end] == alone.tokens
        for layer in range(2):
            weights = both.weights(layer)[:, start:end]
            ours = weights[:, :, start:end]
            np.testing.assert_allclose(ours, alone.weights(layer), atol=1e-6)
            assert weights.sum() == pytest.approx(ours.sum()), "nothing goes to the others"
        start = end
    assert np.isneginf(both.scores(0)[:, :8, 8:]).all()


def test_statistics_of_heads():
    """Two heads by hand: one attends to itself, one to all three tokens equally."""
    nothing = np.zeros((1, 2, 3, 4), np.float32)
    position = np.zeros((1, 2, 3, 3), np.float32)
    position[0, 0] = 1000 * np.eye(3)
    place = np.arange(3)
    attention = Attention(
        tokens=("[CLS]", "a", "[SEP]"),
        layers=(4,),
        query=nothing,
        key=nothing,
        position=position,
        seen=np.ones((1, 3, 3), bool),
        sequence_ids=np.ones(3, np.int32),
        position_ids=place,
        is_cls=place == 0,
        is_sep=place == 2,
    )
    itself, evenly = statistics(attention)
    assert tuple(itself.values()) == (4, 1, 1 / 3, 1 / 3, 0, 0)
    distance = (0 + 1 + 2 + 1 + 0 + 1 + 2 + 1 + 0) / 9
    assert tuple(evenly.values()) == pytest.approx((4, 2, 1 / 3, 1 / 3, distance, math.log(3)))


# --- likelihood -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spelled(tmp_path_factory) -> Path:
    """A vocabulary in which some words have several tokens."""
    directory = tmp_path_factory.mktemp("spelled")
    rows = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c", "##d", ".", "B"]
    (directory / "vocab.txt").write_text("\n".join(rows) + "\n")
    return directory


def test_pseudo_likelihood_is_that_of_masked_copies(spelled):
    """Each copy through the model by hand; the later tokens of a word are also masked."""
    source = checkpoint("learned", spelled)
    tokenizer = load_tokenizer(spelled)
    texts = ["a bcd a.", "a", "bc a bc"]
    ids = {text: tokenizer.encode(text) for text in texts}
    assert tokenizer.tokens(ids[texts[0]]) == ["[CLS]", "a", "b", "##c", "##d", "a", ".", "[SEP]"]
    # For "a bcd a.": the positions that are masked while each one is predicted.
    hidden = {1: [1], 2: [2, 3, 4], 3: [3, 4], 4: [4], 5: [5], 6: [6]}
    run = jax.jit(
        functools.partial(
            bert.apply,
            config=source.config.model,
            head=source.config.head,
            compute=ComputeConfig(dtype="float32"),
        )
    )
    perplexity = PseudoPerplexity(source, tokenizer)
    scores = perplexity.score(texts)
    assert [(s.text, s.tokens) for s in scores] == [(texts[0], 6), ("a", 1), (texts[2], 5)]
    total = by_hand(run, source, tokenizer, ids[texts[0]], hidden)
    assert scores[0].log_likelihood == pytest.approx(total, abs=1e-4)
    mean = sum(s.log_likelihood for s in scores) / 12
    assert perplexity(texts) == pytest.approx(math.exp(-mean))


def by_hand(run, source, tokenizer, ids: list[int], masked: dict[int, list[int]]) -> float:
    """The sum of the log probabilities of the predicted positions, each with its mask."""
    rows = [[4 if n in where else i for n, i in enumerate(ids)] for where in masked.values()]
    length = np.tile(np.arange(len(ids)), (len(rows), 1))
    batch = {
        "input_ids": np.array(rows),
        "token_type_ids": 0 * length,
        "position_ids": length,
        "sequence_ids": 0 * length + 1,
        "mlm_positions": np.array([[place] for place in masked]),
    }
    logits = run(jax.device_get(source.params), batch)["mlm_logits"]
    known = np.asarray(logits, np.float64)[:, 0, : tokenizer.vocab_size]
    chosen = [softmax(row)[ids[place]] for row, place in zip(known, masked, strict=True)]
    return float(np.log(chosen).sum())


def test_the_minimal_pairs_differ_in_one_thing():
    pairs = minimal_pairs.minimal_pairs()
    assert pairs == minimal_pairs.minimal_pairs() and len(set(pairs)) == len(pairs)
    counts = {name: sum(p.phenomenon == name for p in pairs) for name in ("agreement",)}
    assert counts["agreement"] == 6 * 4 * 2
    for pair in pairs:
        right, wrong = (
            text.lower().rstrip(".").split() for text in (pair.grammatical, pair.ungrammatical)
        )
        differ = [i for i, (a, b) in enumerate(zip(right, wrong, strict=True)) if a != b]
        if pair.phenomenon == "word_order":
            assert sorted(right) == sorted(wrong) and len(differ) == 2
        else:
            assert len(differ) == 1
            assert right[differ[0]] in ("is", "are", "has", "have", "was", "were", "does", "do")
        if pair.phenomenon == "agreement_attractor":
            assert right[1].endswith("s") != right[4].endswith("s")
    assert MinimalPair("agreement", "The words are in the list.", "The words is in the list.") in (
        pairs
    )


def test_a_pair_of_equally_likely_sentences_counts_half():
    likely = {"a": -1.0, "b": -2.0, "c": -1.0, "d": -1.0 - 1e-6}

    def score(texts):
        return [SimpleNamespace(text=text, log_likelihood=likely[text]) for text in texts]

    pairs = [
        MinimalPair("x", "a", "b"),
        MinimalPair("x", "b", "a"),
        MinimalPair("x", "c", "b"),
        MinimalPair("y", "d", "c"),
    ]
    shares = minimal_pairs.score_pairs(SimpleNamespace(score=score), pairs)  # type: ignore[arg-type]
    assert shares == {"x": 2 / 3, "y": 0.5}


def test_a_model_without_positions_ignores_the_order(words):
    """A model with positions prefers one of the two."""
    tokenizer = load_tokenizer(words)
    pairs = [MinimalPair("word_order", "w1 w2 w3 w4", "w1 w3 w2 w4")]
    shares = {}
    for kind in ("none", "learned"):
        perplexity = PseudoPerplexity(checkpoint(kind, words), tokenizer)
        shares[kind] = minimal_pairs.score_pairs(perplexity, pairs)["word_order"]
    assert shares["none"] == 0.5 and shares["learned"] in (0.0, 1.0)


# --- the verb ------------------------------------------------------------------------------------


def test_the_verb_agrees_with_the_functions(
    trained, corpus, tmp_path, capsys, exported, monkeypatch
):
    few = minimal_pairs.minimal_pairs()[:7]
    monkeypatch.setattr(minimal_pairs, "minimal_pairs", lambda: few)
    file = tmp_path / "answers.json"
    asked = ["probe", str(trained)]
    options = ["--corpus", str(corpus), "--output-file", str(file), "--json"]
    assert main([*asked, *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert json.loads(file.read_text(encoding="utf-8")) == said
    model = load(trained)
    perplexity = PseudoPerplexity(model.source, model.tokenizer)
    found = {(each["probe"], each["name"]): each["value"] for each in said["findings"]}
    for name, share in minimal_pairs.score_pairs(perplexity).items():
        assert found.pop(("minimal_pairs", name)) == pytest.approx(100 * share)
    sentences = [s[0] for s in readable_sentences(open_corpus(corpus), 64) if s]
    assert all(8 <= len(ids) <= 28 for ids in sentences) and len(sentences) > 1
    texts = [model.tokenizer.decode(ids) for ids in sentences]
    held_out = found.pop(("pseudo_perplexity", "pseudo_perplexity"))
    assert held_out == pytest.approx(perplexity(texts), rel=1e-5)
    assert not found
    # A run records its corpus. Without one, probes that need it are skipped; by name, an error.
    assert main(asked) == 0
    assert "pseudo_perplexity" in capsys.readouterr().out
    assert main(["probe", str(exported)]) == 0
    said = capsys.readouterr()
    assert "pseudo_perplexity is left out" in said.err and "agreement attractor" in said.out


def test_pairs_of_files_are_scored_by_uid(exported, tmp_path, capsys, monkeypatch):
    """Accuracies, their mean over the UIDs, and the standard errors of independent pairs."""
    likely = {"a": -1.0, "b": -2.0, "c": -3.0}

    def score(self, texts):
        return [SimpleNamespace(text=text, log_likelihood=likely[text]) for text in texts]

    monkeypatch.setattr(PseudoPerplexity, "score", score)
    folder = tmp_path / "pairs"
    folder.mkdir()
    rows = [("a", "b", "x"), ("b", "a", "x"), ("a", "c", "x"), ("b", "c", "x"), ("c", "c", None)]
    for file in ("of_x.jsonl", "of_y.jsonl"):
        with (folder / file).open("w") as stream:
            for good, bad, uid in rows:
                if (uid is None) == (file == "of_y.jsonl"):
                    row = {"sentence_good": good, "sentence_bad": bad}
                    stream.write(json.dumps(row | ({} if uid is None else {"UID": uid})) + "\n")
    command = ["probe", str(exported), "--pairs", str(folder)]
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    error = 100 * math.sqrt(0.75 * 0.25 / 4)
    assert [(f["name"], f["value"], f["standard_error"]) for f in said["findings"]] == [
        ("x", 75.0, pytest.approx(error)),
        ("of_y", 100.0, 0.0),
        ("mean", 87.5, pytest.approx(error / 2)),
    ]
    assert said["pairs"][1] == {"UID": "x", "good": -2.0, "bad": -1.0} and len(said["pairs"]) == 5
    assert main(command) == 0
    assert "75.0 ± 21.7 %" in capsys.readouterr().out
    (folder / "of_y.jsonl").write_text('{"sentence_good": "a"}\n')
    assert main(command) == 2
    assert "of_y.jsonl, line 1: each line is a JSON object" in capsys.readouterr().err
    assert main([*command, "--probe", "pseudo_perplexity"]) == 2
    assert "--pairs is for --probe minimal_pairs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--probe", "pseudo_perplexity"], "name a --corpus"),
        (["--probe", "minimal_pair"], "Did you mean 'minimal_pairs'?"),
        (["--output-file", "missing/answers.json"], "no directory missing; make it first"),
    ],
)
def test_invalid_arguments_of_the_verb(options, message, exported, capsys):
    assert main(["probe", str(exported), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def spoilt(exported, tmp_path_factory) -> Path:
    """A model with parameters as after a much too high learning rate: finite, but too large to
    compute with.
    """
    from safetensors.numpy import load_file, save_file

    directory = tmp_path_factory.mktemp("spoilt") / "hf"
    shutil.copytree(exported, directory)
    file = directory / "model.safetensors"
    large = {name: array * np.float32(1e25) for name, array in load_file(file).items()}
    save_file(large, file, metadata={"format": "np"})
    return directory


@pytest.mark.parametrize(
    "command",
    [
        ["fill-mask", "The [MASK] of Ada."],
        ["embed", "--input", "text.txt", "--output-file", "written.npz"],
        ["probe", "--probe", "minimal_pairs", "--output-file", "written"],
        ["attention", "The horse of Ada.", "--html", "written"],
    ],
    ids=lambda command: command[0],
)
def test_a_model_with_nan_has_no_results(command, spoilt, tmp_path, monkeypatch, capsys):
    """Words, shares and vectors from NaN would be meaningless."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("The horse of Ada.\n")
    assert main([command[0], str(spoilt), *command[1:]]) == 6
    said = capsys.readouterr()
    assert "outputs of the model are not finite" in said.err and not said.out
    assert [file.name for file in tmp_path.iterdir()] == ["text.txt"]


def test_a_model_without_some_heads_gets_the_other_probes(words, monkeypatch, capsys):
    source = checkpoint("learned", words, head=HeadConfig(parts=("pooler",)))
    monkeypatch.setattr("bert_jax.api.model.load", lambda *_, **__: Model(source))
    assert main(["probe", "any", "--json"]) == 0
    said = capsys.readouterr()
    assert "minimal_pairs is left out: checkpoint" in said.err and "masked-LM head" in said.err
    assert json.loads(said.out)["findings"] == []
    assert main(["probe", "any", "--probe", "minimal_pairs"]) == 2
    assert "has no masked-LM head" in capsys.readouterr().err


def test_masked_words_are_from_the_held_out_split(trained, corpus):
    opened, tokenizer = open_corpus(corpus), load_tokenizer(trained / "tokenizer")
    source = load_checkpoint(trained, mesh=sharding.make_mesh(fsdp=-1, tensor=1))
    found = hidden_words(source, tokenizer, opened, number=4)
    assert len(found) == 4 and found == hidden_words(source, tokenizer, opened, number=4)
    tokens = np.concatenate(opened.validation.shards).tolist()
    held_out = tokenizer.decode(tokens)
    for each in found:
        assert each["text"].count("[MASK]") == 1 and each["word"].isalpha()
        before, after = each["text"].split("[MASK]")
        assert f"{before}{each['word']}" in held_out and after.strip().split(" ")[0] in held_out
        shares = [share for _, share in each["candidates"]]
        assert each["is_right"] == (each["candidates"][0][0] == each["word"])
        assert len(shares) == 3 and shares == sorted(shares, reverse=True) and sum(shares) <= 1
