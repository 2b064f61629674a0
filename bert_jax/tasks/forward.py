"""A task head's outputs for all rows, in evaluation and prediction."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from bert_jax.config import TrainConfig
from bert_jax.data.features import Batches, Features
from bert_jax.model import heads
from bert_jax.model.sharding import batch_sharding


class Forward:
    """One output of a model, by name. Compiles once for each length of a batch."""

    def __init__(
        self,
        config: TrainConfig,
        output: str,
        *,
        batch_size: int,
        before_batch: Callable[[], None] = lambda: None,
    ):
        """`batch_size` grows to what the devices divide; `before_batch` hears of progress."""
        self._output, self._before_batch = output, before_batch
        mesh = jax.sharding.get_mesh()
        self._layout = batch_sharding(mesh)
        self._size = -(-batch_size // mesh.size) * mesh.size
        self._apply = jax.jit(
            lambda params, batch: heads.apply(
                params,
                batch,
                config=config.model,
                head=config.head,
                compute=config.compute,
                hidden_states=output == "hidden_states",
            )[output]
        )

    def batches(self, params: heads.Params, features: Features) -> Iterator[np.ndarray]:
        """Outputs of the rows in order, some rows at a time, float32."""
        batches = Batches(features, size=self._size)
        for start in range(0, len(features), self._size):
            self._before_batch()
            rows = np.arange(start, min(start + self._size, len(features)))
            batch: Any = batches(rows)
            placed = jax.device_put(batch, self._layout)
            outputs = np.asarray(self._apply(params, placed), np.float32)
            yield outputs[: len(rows)]

    def __call__(self, params: heads.Params, features: Features) -> np.ndarray:
        """`[N, ...]`: outputs of tokens beyond a batch's length, which are padding, are 0."""
        first, done = None, 0
        for outputs in self.batches(params, features):
            if first is None:
                shape = list(outputs.shape)
                shape[0] = len(features)
                if self._output in ("token_logits", "span_logits", "hidden_states"):
                    shape[1] = features.input_ids.shape[1]
                first = np.zeros(shape, np.float32)
            here = first[done : done + len(outputs)]
            here[tuple(slice(n) for n in outputs.shape)] = outputs
            done += len(outputs)
        assert first is not None, "no rows"
        return first
