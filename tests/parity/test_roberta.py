"""RoBERTa beside transformers on torch: logits and gradients, 100 updates, and a run of ours."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.__main__ import main
from bert_jax.config import ComputeConfig, DataConfig, HeadConfig, ModelConfig, PhaseConfig
from bert_jax.config_loader import load_config
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.data.tokenizer.training import train_byte_level_bpe
from bert_jax.interchange import huggingface, huggingface_config
from bert_jax.interchange.families import ROBERTA_FAMILY
from bert_jax.model import bert, sharding
from bert_jax.objectives.mlm import MLM
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.registry import FAMILIES
from bert_jax.update.state import TrainState
from bert_jax.update.step import train_step
from tests import tiny_corpus
from tests.batches import random_batch
from tests.interchange.test_huggingface_classes import assert_same_outputs
from tests.interchange.test_roberta import CLASSES, written
from tests.models import random_params, vocabulary

torch = pytest.importorskip("torch", reason="needs the 'parity' extra")
transformers = pytest.importorskip("transformers", reason="needs the 'parity' extra")
pytestmark = pytest.mark.parity

_PAD = 1
_HEAD = HeadConfig(parts=("mlm",))
_MODEL = ModelConfig(
    vocab_size=1009,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    hidden_act="gelu",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=64,
    type_vocab_size=1,
    layer_norm_eps=1e-5,
)


def one_device():
    return sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])


def their_model(model: ModelConfig = _MODEL, *, model_type: str = "roberta"):
    """Their class with random weights, biases and norms included."""
    described = huggingface_config.config_of(model, _HEAD, pad=_PAD, model_type=model_type)
    described.pop("model_type")
    config = transformers.AutoConfig.for_model(model_type, **described)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    theirs = transformers.AutoModelForMaskedLM.from_config(config).eval()
    assert type(theirs).__name__ == described["architectures"][0]
    for name, parameter in theirs.named_parameters():
        if not parameter.requires_grad:  # RoFormer's sines
            continue
        is_scale = name.lower().endswith(("layernorm.weight", "layer_norm.weight"))
        torch.nn.init.normal_(parameter, mean=float(is_scale), std=0.1)
    return theirs


def batch_of(seed: int, *, rows: int = 6, length: int = 32) -> dict[str, np.ndarray]:
    """A random batch of one segment; padding has RoBERTa's id, from which it counts positions."""
    batch = random_batch(
        rows=rows, length=length, predictions=5, vocab_size=_MODEL.vocab_size, seed=seed
    )
    batch["input_ids"] = np.where(batch["sequence_ids"] == 1, batch["input_ids"], _PAD)
    batch["token_type_ids"] = np.zeros_like(batch["token_type_ids"])
    return {name: array for name, array in batch.items() if not name.startswith("nsp")}


def their_loss(theirs, batch):
    """Their outputs; their labels are -100 where nothing counts."""
    labels = np.full(batch["input_ids"].shape, -100)
    rows, places = np.nonzero(batch["mlm_weights"])
    labels[rows, batch["mlm_positions"][rows, places]] = batch["mlm_targets"][rows, places]
    return theirs(
        input_ids=torch.tensor(batch["input_ids"], dtype=torch.long),
        attention_mask=torch.tensor(batch["sequence_ids"], dtype=torch.long),
        labels=torch.tensor(labels, dtype=torch.long),
    )


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "silu"])
def test_the_classifier_of_a_roformer(tmp_path, act):
    model = dataclasses.replace(
        _MODEL, position_embedding_type="rotary_interleaved", hidden_act=act, type_vocab_size=2
    )
    asked = HeadConfig(parts=("pooler", "sequence_classifier"), labels=("a", "b", "c"))
    head = huggingface.with_classifier(model, _HEAD, asked)
    params, batch = random_params(model, head), batch_of(0)
    words = vocabulary(tmp_path / "words", size=model.vocab_size)
    huggingface.write(tmp_path / "hf", params, model, head=head, tokenizer=words)
    theirs, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "hf", attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    expected = theirs.eval()(
        input_ids=torch.tensor(batch["input_ids"], dtype=torch.long),
        attention_mask=torch.tensor(batch["sequence_ids"], dtype=torch.long),
    ).logits
    batch = {name: jax.numpy.asarray(array) for name, array in batch.items()}
    compute = ComputeConfig(dtype="float32")
    ours = bert.apply(params, batch, config=model, head=head, compute=compute)
    logits = next(value for name, value in ours.items() if name.endswith("logits"))
    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("roberta", {}),
        ("roberta-prelayernorm", {"norm_placement": "pre"}),
        ("roformer", {"position_embedding_type": "rotary_interleaved"}),
    ],
)
def test_logits_gradients_and_the_way_back(tmp_path, model_type, changes):
    """Random weights of theirs: read, computed, written."""
    family = FAMILIES[model_type]
    theirs = their_model(model_type=model_type)
    theirs.save_pretrained(tmp_path / "theirs")
    # 261 ids; the embedding may have more rows.
    train_byte_level_bpe(["a b"], vocab_size=261).save(tmp_path / "words")
    foreign = huggingface.read(tmp_path / "theirs")
    assert foreign.model == dataclasses.replace(_MODEL, **changes)
    assert foreign.head == _HEAD
    batch = batch_of(0)

    def loss(params):
        outputs = bert.apply(
            params,
            batch,
            config=foreign.model,
            head=foreign.head,
            compute=ComputeConfig(dtype="float32"),
        )
        return MLM.metrics(MLM.sums(outputs, batch))["loss"], outputs

    with jax.set_mesh(one_device()):
        (our_loss, outputs), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(
            foreign.params
        )
    found = their_loss(theirs.double(), batch)
    found.loss.backward()
    picked = np.take_along_axis(
        found.logits.detach().numpy(), batch["mlm_positions"][:, :, None], axis=1
    )
    apart = np.abs(np.asarray(outputs["mlm_logits"]) - picked).max()
    assert np.ptp(picked) > 1, "logits that do not differ prove nothing"
    assert apart < 1e-5 and abs(float(our_loss) - found.loss.item()) < 1e-5
    ours = huggingface.to_tensors(gradients, family, pad=_PAD)
    references = {n: p.grad.numpy() for n, p in theirs.named_parameters() if p.requires_grad}
    assert set(ours) == set(references)
    largest = max(np.abs(g).max() for g in references.values())
    worst = max(np.abs(ours[name] - g).max() for name, g in references.items())
    print(f"\nlogits {apart:.1e} apart; gradients {worst / largest:.1e} of the largest")
    assert worst < 1e-5 * largest

    huggingface.write(
        tmp_path / "ours",
        foreign.params,
        foreign.model,
        head=foreign.head,
        tokenizer=tmp_path / "words",
    )
    back, given = (load_file(tmp_path / d / "model.safetensors") for d in ("ours", "theirs"))
    table = f"{family.base}.embeddings.position_embeddings.weight"
    if family.sinusoids:
        sines = back.pop(family.sinusoids), given.pop(family.sinusoids)
        np.testing.assert_allclose(*sines, atol=1e-6)
    else:
        assert not back[table][:2].any()  # of the rows that no token uses nothing is kept
        back[table], given[table] = back[table][2:], given[table][2:]
    assert back.keys() == given.keys()
    for name, tensor in given.items():
        assert back[name].tobytes() == tensor.tobytes(), name


def test_training_curve_equals_torch():
    """100 updates of the recipe of `roberta_base`, but for its size, from the same weights on the
    same batches; the update rule is written with torch's tensors."""
    steps, warmup = 100, 10
    recipe = load_config("roberta_base")
    config = dataclasses.replace(
        recipe,
        model=_MODEL,
        compute=ComputeConfig(dtype="float32"),
        optimizer=dataclasses.replace(recipe.optimizer, learning_rate=2e-3, warmup_steps=warmup),
        phases=(
            PhaseConfig(sequence_length=32, steps=steps, global_batch_size=8, max_predictions=5),
        ),
    )
    batches = [batch_of(step % 10, rows=8) for step in range(steps)]
    params = bert.init_params(_MODEL, _HEAD, seed=1)
    theirs = their_model()
    weights = huggingface.to_tensors(params, ROBERTA_FAMILY, pad=_PAD)
    missing, unexpected = theirs.load_state_dict(
        {name: torch.tensor(tensor) for name, tensor in weights.items()}, strict=False
    )
    assert not unexpected and all("decoder" in n or "_ids" in n for n in missing), missing
    theirs.tie_weights()
    theirs.double()
    mesh = one_device()
    with jax.set_mesh(mesh):
        state = TrainState.create(config, params).to_mesh(mesh)
        step_of = jax.jit(lambda s, b: train_step(s, b, config=config, objective=MLM))
        ours = []
        for batch in batches:
            state, metrics = step_of(state, batch)
            ours.append(float(metrics["loss"]))

    expected, rule = [], config.optimizer
    moments = {n: [torch.zeros_like(p)] * 2 for n, p in theirs.named_parameters()}
    for step, batch in enumerate(batches):
        theirs.zero_grad()
        loss = their_loss(theirs, batch).loss
        loss.backward()
        expected.append(loss.item())
        rate = rule.learning_rate * min(step / warmup, (steps - step) / (steps - warmup))
        with torch.no_grad():
            for name, p in theirs.named_parameters():
                m, v = moments[name]
                m = rule.beta1 * m + (1 - rule.beta1) * p.grad
                v = rule.beta2 * v + (1 - rule.beta2) * p.grad**2
                moments[name] = [m, v]
                corrected = m / (1 - rule.beta1 ** (step + 1))
                scale = (v / (1 - rule.beta2 ** (step + 1))).sqrt() + rule.epsilon
                is_decayed = "norm" not in name.lower() and "bias" not in name
                p.sub_(rate * (corrected / scale + rule.weight_decay * is_decayed * p))
    apart = np.max(np.abs(np.array(ours) - expected) / expected)
    print(f"\n100 steps: losses {ours[0]:.3f} to {ours[-1]:.3f}, at most {apart:.1e} apart")
    assert ours[-1] < ours[0] - 1.0, "nothing was learned: the comparison is empty"
    assert apart < 1e-4


@pytest.mark.parametrize("name", CLASSES)
def test_what_we_write_is_their_class(tmp_path, name):
    """Random weights of ours, with every head."""
    train_byte_level_bpe([" the bear eats"] * 3, vocab_size=300).save(tmp_path / "words")
    written(tmp_path / "hf", tmp_path / "words", name)
    kind = getattr(transformers, f"Roberta{name}")
    theirs, report = kind.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys"))
    assert_same_outputs(tmp_path / "hf", name, theirs, pad=_PAD)


# --- a run of ours --------------------------------------------------------------------------------


def their_logits(directory, kind, texts):
    words = transformers.AutoTokenizer.from_pretrained(directory)
    theirs, report = kind.from_pretrained(directory, output_loading_info=True)
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys"))
    given = words(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        return theirs.eval()(**given).logits.numpy(), given.input_ids.numpy()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A corpus of byte-level sub-words, a run of `mlm` on it, and its export."""
    folder = tmp_path_factory.mktemp("roberta")
    source = tiny_corpus.write(folder / "stories.txt")
    command = ["prepare", "--source", str(source), "--output-dir", str(folder / "corpus")]
    command += ["--tokenizer", "bpe", "--vocab-size", "400", "--validation-fraction", "0.2"]
    assert main([*command, "--workers", "1"]) == 0
    config = tiny_corpus.tiny_config(
        objective="mlm",
        head=_HEAD,
        data=DataConfig(sequence_format="full_sentences"),
        model=dataclasses.replace(
            _MODEL, vocab_size=400, max_position_embeddings=48, initializer_range=0.1
        ),
        phases=(
            PhaseConfig(sequence_length=32, steps=60, global_batch_size=16, max_predictions=5),
        ),
    )
    path = tiny_corpus.write_config(folder / "config.json", config)
    command = ["pretrain", str(path), "--corpus", str(folder / "corpus")]
    assert main([*command, "--workdir", str(folder / "run")]) == 0
    command = ["export", str(folder / "run"), "--output-dir", str(folder / "hf")]
    assert main(command) == 0
    return folder


def our_logits(directory, text):
    """MLM logits of every token of `<s> text </s>`."""
    ids = np.array([load_tokenizer(directory).encode(text)], np.int32)
    places = np.arange(ids.shape[1], dtype=np.int32)[None]
    mesh = one_device()
    with jax.set_mesh(mesh):
        loaded = load_checkpoint(directory, mesh=mesh)
        batch = {
            "input_ids": ids,
            "token_type_ids": np.zeros_like(ids),
            "position_ids": places,
            "sequence_ids": np.ones_like(ids),
            "mlm_positions": places,
        }
        outputs = bert.apply(
            loaded.params,
            batch,
            config=loaded.config.model,
            head=loaded.config.head,
            compute=ComputeConfig(dtype="float32"),
        )
        return np.asarray(outputs["mlm_logits"])[0], ids[0]


_TEXT = "In winter the<mask> of Ada sleeps in the stable. It is old."


def test_a_run_of_ours_is_a_roberta(run):
    described = json.loads((run / "hf/config.json").read_text())
    assert described["architectures"] == ["RobertaForMaskedLM"]
    theirs, ids = their_logits(run / "hf", transformers.AutoModelForMaskedLM, [_TEXT, "A bee."])
    for directory in (run / "run", run / "hf"):
        ours, our_ids = our_logits(directory, _TEXT)
        assert our_ids.tolist() == ids[0].tolist()
        np.testing.assert_allclose(ours, theirs[0], atol=1e-5, rtol=0)
    assert np.ptp(theirs) > 1
    names = transformers.RobertaForMaskedLM.from_pretrained(run / "hf").state_dict()
    assert names["roberta.embeddings.position_embeddings.weight"].shape[0] == 50
