"""The rows of RoBERTa's position table that no token uses: there in their files, not in our models.

Their positions begin behind the number of the padding token (transformers modeling_roberta.py,
`create_position_ids_from_input_ids`): with padding as id 1, two rows come first, and 512 positions
are a table of 514.
"""

from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UsageError, brief
from bert_jax.interchange.huggingface_names import Family


def count(family: Family, theirs: dict[str, Any], path: Path) -> int:
    """Returns how many rows come before that of the first token, as the `config.json` at `path`
    says.
    """
    if family.default_pad is None:
        return 0
    pad = theirs.get("pad_token_id", family.default_pad)
    if not isinstance(pad, int) or isinstance(pad, bool) or pad < 0:
        raise UsageError(
            f"{path}: pad_token_id is {brief(pad)}; RoBERTa's positions begin behind it: give the "
            "id of its padding token"
        )
    return pad + 1


def without(tensors: dict[str, np.ndarray], family: Family, rows: int) -> dict[str, np.ndarray]:
    """Returns the tensors of a file as a model of ours has them: without the first `rows`."""
    name = _table(family)
    if not rows or name not in tensors or not tensors[name].ndim:
        return tensors
    return tensors | {name: tensors[name][rows:]}


def added(tensors: dict[str, np.ndarray], family: Family, rows: int) -> dict[str, np.ndarray]:
    """Returns the tensors as a file has them: the first `rows` are zero."""
    name = _table(family)
    if not rows or name not in tensors:
        return tensors
    first = np.zeros((rows, *tensors[name].shape[1:]), tensors[name].dtype)
    return tensors | {name: np.concatenate([first, tensors[name]])}


def _table(family: Family) -> str:
    return f"{family.base}.embeddings.position_embeddings.weight"
