"""Update rule and schedule against NumPy restatements of google-research/bert optimization.py."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.config import OptimizerConfig
from bert_jax.update.optimizers import bert_adamw, decay_mask

pytestmark = pytest.mark.core


def tf1_learning_rate(step: int, *, rate: float, warmup: int, total: int) -> float:
    """polynomial_decay to 0 with power 1; in the warm-up, the warm-up line instead. In float64."""
    return rate * step / warmup if step < warmup else rate * (total - step) / total


@pytest.mark.parametrize("step", [0, 1, 9_999, 10_000, 10_001, 123_457, 500_000, 999_998, 999_999])
def test_learning_rate_within_one_ulp(step):
    config = OptimizerConfig(learning_rate=1e-4, warmup_steps=10_000)
    ours = jax.jit(lambda s: config.schedule.rate(s, config=config, total_steps=1_000_000))(
        jnp.int32(step)
    )
    exact = tf1_learning_rate(step, rate=1e-4, warmup=10_000, total=1_000_000)
    assert ours.dtype == jnp.float32
    assert abs(np.float64(ours) - exact) <= np.spacing(np.float32(exact))


def tf1_updates(params, gradients, config: OptimizerConfig, *, total: int):
    """AdamWeightDecayOptimizer.apply_gradients after clip_by_global_norm, one name at a time."""
    params = {name: value.copy() for name, value in params.items()}
    m = {name: np.zeros_like(value) for name, value in params.items()}
    v = {name: np.zeros_like(value) for name, value in params.items()}
    for step, step_gradients in enumerate(gradients):
        rate = tf1_learning_rate(
            step, rate=config.learning_rate, warmup=config.warmup_steps, total=total
        )
        norm = np.sqrt(sum(np.sum(g * g) for g in step_gradients.values()))
        scale = config.clip_norm * min(1 / norm, 1 / config.clip_norm)
        for name, gradient in step_gradients.items():
            gradient = gradient * scale
            m[name] = config.beta1 * m[name] + (1 - config.beta1) * gradient
            v[name] = config.beta2 * v[name] + (1 - config.beta2) * gradient**2
            update = m[name] / (np.sqrt(v[name]) + config.epsilon)
            if not any(part in name for part in ("LayerNorm", "layer_norm", "bias")):
                update = update + config.weight_decay * params[name]
            params[name] = params[name] - rate * update
    return params


def test_200_updates_equal_tf1():
    config = OptimizerConfig(learning_rate=1e-3, warmup_steps=20)
    rng = np.random.default_rng(0)
    shapes = {"dense/kernel": (9, 4), "dense/bias": (4,), "word/embedding": (11, 3)}
    shapes |= {"layer_norm/scale": (5,), "layer_norm/bias": (5,)}
    params = {name: rng.normal(0, 0.1, shape) for name, shape in shapes.items()}
    # Norms from far below to far above the clip, and a sparse embedding gradient.
    gradients = []
    for _ in range(200):
        size = 10.0 ** rng.uniform(-4, 1)
        draw = {name: rng.normal(0, size, shape) for name, shape in shapes.items()}
        draw["word/embedding"][rng.integers(0, 11, 8)] = 0
        gradients.append(draw)

    def nested(flat):
        tree: dict = {}
        for name, value in flat.items():
            part, leaf = name.split("/")
            tree.setdefault(part, {})[leaf] = jnp.asarray(value, jnp.float32)
        return tree

    optimizer = bert_adamw(config)

    @jax.jit
    def update(params, opt_state, gradient, step):
        direction, opt_state = optimizer.update(gradient, opt_state, params)
        rate = config.schedule.rate(step, config=config, total_steps=200)
        return jax.tree.map(lambda p, d: p - rate * d, params, direction), opt_state

    ours = nested(params)
    opt_state = optimizer.init(ours)
    for step, gradient in enumerate(gradients):
        ours, opt_state = update(ours, opt_state, nested(gradient), jnp.int32(step))

    reference = nested(tf1_updates(params, gradients, config, total=200))
    moved = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), ours, nested(params))
    assert min(jax.tree.leaves(moved)) > 0.01, "the parameters hardly moved: nothing was compared"
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6, rtol=0), ours, reference)


def test_bias_correction_is_optax_adamw():
    config = OptimizerConfig(bias_correction=True, clip_norm=0.0, weight_decay=0.02)
    params = {"dense": {"kernel": jnp.full((3, 2), 0.5), "bias": jnp.full(2, 0.5)}}
    gradient = {"dense": {"kernel": jnp.arange(6.0).reshape(3, 2), "bias": jnp.arange(2.0)}}
    reference = optax.adamw(1.0, b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.02, mask=decay_mask)
    ours = bert_adamw(config)
    direction, _ = ours.update(gradient, ours.init(params), params)
    expected, _ = reference.update(gradient, reference.init(params), params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(-a, b, rtol=1e-6), direction, expected)


def test_decay_goes_by_name_and_knows_every_parameter():
    from bert_jax.config import ModelConfig
    from bert_jax.model import bert

    mask = decay_mask(bert.abstract_params(ModelConfig(num_hidden_layers=1)))
    decayed = {
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, on in jax.tree_util.tree_leaves_with_path(mask)
        if on
    }
    parts = ["query", "key", "value", "attention_output", "intermediate", "output"]
    assert decayed == {f"encoder.layer_0.{part}.kernel" for part in parts} | {
        "encoder.embeddings.word.embedding",
        "encoder.embeddings.position.embedding",
        "encoder.embeddings.token_type.embedding",
        "pooler.dense.kernel",
        "mlm.transform.kernel",
        "nsp.kernel",
    }
    with pytest.raises(ValueError, match="gain"):
        decay_mask({"norm": {"gain": jnp.ones(2)}})
