"""The outputs of a model for all rows of a task, in evaluation and prediction."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.data.tasks.encode_rows import Batches, Features
from bert_jax.errors import NonFinite
from bert_jax.model import bert
from bert_jax.model.heads.embedding import pooled
from bert_jax.progress import Progress
from bert_jax.training import device_feed
from bert_jax.training.divergence import SPOILT

# Outputs with one entry per token, which are shorter in a short batch.
OF_TOKENS = (
    "token_logits", "span_logits", "mlm_logits", "replaced_logits", "last_hidden_state",
)  # fmt: skip


def in_float32(config: TrainConfig) -> TrainConfig:
    """Returns the config with float32 as the compute type.

    The outputs then equal those of the exported model in other libraries; bfloat16 would differ in
    the third digit. `Forward` also uses float32 matmuls, which a TPU or GPU would otherwise round.
    """
    compute = dataclasses.replace(config.compute, dtype="float32")
    return dataclasses.replace(config, compute=compute)


def require_finite(outputs: Any) -> None:
    """Raises NonFinite if outputs contain NaN or infinity.

    A score may be -inf: a padding row of the vocabulary.
    """
    # The maximum is NaN if any value is.
    if not all(array.max(initial=-np.inf) < np.inf for array in jax.tree.leaves(outputs)):
        raise NonFinite(f"the outputs of the model are not finite: {SPOILT}")


class Forward:
    """Computes outputs of a model: one by name, or several. Compiles once per length of a batch.

    Every process gets the outputs of all rows. Sets its mesh while it computes.
    """

    def __init__(
        self,
        config: TrainConfig,
        output: str | Callable[[dict[str, Any]], dict[str, Any]],
        *,
        batch_size: int,
        layers: Sequence[int] | None = None,
        pooling: str = "none",
        mesh: Mesh | None = None,
    ):
        """`output` is a name, or a function that chooses from all outputs by name. `batch_size` is
        the maximum number of rows per batch. `mesh` defaults to the current mesh.

        `mlm_logits` are at `mlm_positions` if a batch has them, otherwise at every position.
        With `layers`, the output is the joined hidden states of those layers, `[N, L, layers x D]`,
        from one pass; 0 are the embeddings. A `pooling` of them (heads/embedding.py) is float32
        `[N, layers x D]`.
        """
        self._output = output
        self._mesh = jax.sharding.get_mesh() if mesh is None else mesh
        self._batch_size = batch_size

        precision = "highest" if config.compute.dtype == "float32" else None

        @jax.default_matmul_precision(precision)
        def apply(params: bert.Params, batch: dict[str, jax.Array]) -> Any:
            outputs = bert.apply(
                params,
                {"mlm_positions": batch["position_ids"]} | batch,
                config=config.model,
                head=config.head,
                compute=config.compute,
                hidden_states=layers is not None,
            )
            if layers is not None:
                states = outputs["hidden_states"]
                found = jax.numpy.concatenate([states[layer] for layer in layers], axis=-1)
                if pooling != "none":
                    found = pooled(found, batch, pooling)[:, 0]
            else:
                found = outputs[output] if isinstance(output, str) else output(outputs)
            # Replicated, because a process can only read the data on its own devices.
            return jax.tree.map(lambda x: jax.reshard(x, jax.P()), found)

        self._apply = jax.jit(apply)

    def size(self, rows: int) -> int:
        """Returns the batch size for `rows` rows, a multiple of the number of devices.

        A size below the maximum is a power of two, so that few sizes are compiled.
        """
        wanted = min(self._batch_size, 1 << (rows - 1).bit_length())
        return -(-wanted // self._mesh.size) * self._mesh.size

    def lowered(self, params: Any, batch: dict[str, np.ndarray]) -> Any:
        """Returns the program for batches of this shape. `params` may be descriptions."""
        with jax.set_mesh(self._mesh):
            return self._apply.lower(params, device_feed.whole_to_global(batch, mesh=self._mesh))

    def batch(self, params: bert.Params, batch: dict[str, np.ndarray]) -> Any:
        """Returns the outputs of one batch of a `size`, float32. Raises NonFinite."""
        with jax.set_mesh(self._mesh):
            outputs = self._apply(params, device_feed.whole_to_global(batch, mesh=self._mesh))
            found = jax.tree.map(lambda x: np.asarray(x, np.float32), outputs)
        require_finite(found)
        return found

    def batches(self, params: bert.Params, features: Features) -> Iterator[Any]:
        """Yields the outputs of the rows in order, some rows at a time, float32."""
        size = self.size(len(features))
        batches = Batches(features, size=size)
        for start in range(0, len(features), size):
            rows = np.arange(start, min(start + size, len(features)))
            outputs, count = self.batch(params, batches(rows)), len(rows)
            yield jax.tree.map(lambda x, count=count: x[:count], outputs)

    def padded_lengths(self, features: Features) -> np.ndarray:
        """Returns the length that each row has in a batch of rows of similar length `[N]`."""
        lengths = np.array(Batches(features, size=self.size(len(features))).lengths)
        return lengths[np.searchsorted(lengths, features.lengths)]

    def __call__(
        self,
        params: bert.Params,
        features: Features,
        *,
        cut_short: Callable[[], bool] = lambda: False,
        title: str = "",
    ) -> Any:
        """Returns `[N, ...]`; outputs of tokens beyond a batch's length, which are padding, are 0.

        Returns None if `cut_short`, called before every batch, returns true. With a `title`, shows
        a progress bar.
        """
        found: dict[str, np.ndarray] = {}
        done = 0
        batches = self.batches(params, features)
        with Progress(title, total=len(features), hidden=not title) as progress:
            while not cut_short():
                outputs = next(batches, None)
                if outputs is None:
                    assert found, "no rows"
                    return found[self._output] if isinstance(self._output, str) else found
                if isinstance(self._output, str):
                    outputs = {self._output: outputs}
                for name, array in outputs.items():
                    if not done:
                        shape = [len(features), *array.shape[1:]]
                        if name in OF_TOKENS:
                            shape[1] = features.input_ids.shape[1]
                        found[name] = np.zeros(shape, np.float32)
                    here = found[name][done : done + len(array)]
                    here[tuple(slice(n) for n in array.shape)] = array
                done += len(next(iter(outputs.values())))
                progress.advance(len(next(iter(outputs.values()))))
        return None
