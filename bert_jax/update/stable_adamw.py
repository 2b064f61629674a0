"""StableAdamW: AdamW with a smaller step for tensors with an outdated second moment.

Wortsman et al. 2023, "Stable and low-precision training for large-scale vision-language models"
(arXiv:2304.13013), as ModernBERT trains with it (AnswerDotAI/ModernBERT src/optimizer.py, from the
package torch-optimi).
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import Optimizer
from bert_jax.config.fields import section, setting
from bert_jax.model.roles import role_of
from bert_jax.update.optimizers import decay_mask


@section
class StableAdamW(Optimizer, kind="stable_adamw"):
    """StableAdamW at a learning rate of 1.

    In place of bias correction, each beta starts at 0 and grows: beta_t = beta x
    (1 - beta^(t-1)) / (1 - beta^t). A tensor's step, with its decay, is divided by max(1, rms),
    where rms is the root mean of gradient^2 / max(second moment, epsilon^2). This replaces
    clipping, which `clip_norm=0` disables.
    """

    joined_rms: bool = setting(
        False,
        "Whether queries, keys and values share an rms, and the two input layers of a gated "
        "feed-forward layer, which ModernBERT stores as one matrix each.",
    )

    def transformation(self) -> optax.GradientTransformation:
        beta1, beta2, epsilon = self.beta1, self.beta2, self.epsilon

        def init(params):
            # Two separate trees: the step donates its buffers, and each only once.
            mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
            return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=mu, nu=nu)

        def update(updates, state, params=None):
            count = state.count + 1
            b1, b2 = (_debiased(beta, count) for beta in (beta1, beta2))
            mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
            nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, updates)

            def move(p, g, m, v, is_decayed, rms=None):
                if rms is None:
                    rms = jnp.sqrt(jnp.mean(g * g / jnp.maximum(v, epsilon**2)))
                step = m / (jnp.sqrt(v) + epsilon)
                if is_decayed:
                    step += self.weight_decay * p
                return -step / jnp.maximum(1.0, rms)

            trees = [params, updates, mu, nu, decay_mask(params)]
            if self.joined_rms:
                trees.append(_joined_rms(updates, nu, epsilon))
            moved = jax.tree.map(move, *trees)
            return moved, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

        return optax.GradientTransformation(init, update)


def _joined_rms(gradients: Any, nu: Any, epsilon: float) -> Any:
    """Returns the rms of each tensor; tensors that other libraries join share it."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(gradients)
    groups = [(path[:-2], role.joined) if (role := role_of(path)) and role.joined else path
              for path, _ in leaves]  # fmt: skip
    sums: dict[Any, Any] = {}
    for group, (_, g), v in zip(groups, leaves, jax.tree.leaves(nu), strict=True):
        total, size = sums.get(group, (0.0, 0))
        sums[group] = total + jnp.sum(g * g / jnp.maximum(v, epsilon**2)), size + g.size
    means = (total / size for total, size in (sums[group] for group in groups))
    return jax.tree.unflatten(structure, [jnp.sqrt(mean) for mean in means])


def _debiased(beta: float, count: jax.Array) -> jax.Array:
    count = count.astype(jnp.float32)
    return beta * (1 - beta ** (count - 1)) / (1 - beta**count)
