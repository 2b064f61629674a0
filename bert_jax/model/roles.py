"""The role of a parameter (weight decay, type, sharding), determined by its last two names.

Mixers and scores declare the roles of their own parameters (`Mixer.roles`); this module has the
others.
"""

from typing import NamedTuple

from bert_jax.registry import MIXERS, SCORES


class Role(NamedTuple):
    """How weight decay, the compute type and tensor parallelism treat a parameter."""

    is_decayed: bool
    # Otherwise it is used in float32, as stored.
    in_compute_type: bool
    # The dim that the mesh's `tensor` axis shards; None replicates the parameter.
    tensor_dim: int | None = None
    # The fused matrix that other libraries store it in, with the parameters that share this name.
    joined: str = ""
    # Only matmuls and lookups read it: its gradient may be summed late (sharding.py).
    is_factor: bool = False


_TABLE, _VECTOR = Role(True, True), Role(False, False)
_MATRIX = _TABLE._replace(is_factor=True)
# A row accumulates the gradient of half of all tokens, which needs float32.
_SEGMENTS = Role(True, False)
COLUMNS, ROWS = _MATRIX._replace(tensor_dim=1), _MATRIX._replace(tensor_dim=0)
CUT_BIAS = _VECTOR._replace(tensor_dim=0)
# Tables that position kinds declare themselves get the default role.
_TABLES = {
    "word.embedding": _MATRIX,
    "decoder.embedding": _MATRIX,
    "token_type.embedding": _SEGMENTS,
}
_BY_LAST_NAME = {"kernel": _MATRIX, "embedding": _TABLE, "bias": _VECTOR, "scale": _VECTOR}
# Feed-forward layers are sharded by their inner width, as in Megatron-LM (Shoeybi et al. 2019,
# section 3).
_FEED_FORWARD = {
    "intermediate.kernel": COLUMNS._replace(joined="input"),
    "intermediate.bias": CUT_BIAS,
    "gate.kernel": COLUMNS._replace(joined="input"),
    "gate.bias": CUT_BIAS,
    "output.kernel": ROWS,
}


def role_of(path: tuple) -> Role | None:
    """Returns the role of the parameter at a path of a tree; None if its name has no role.

    Raises ValueError if two declarations disagree about a name.
    """
    names = [str(getattr(entry, "key", None)) for entry in path[-2:]]
    name = ".".join(names)
    declared = [table[entry].roles for table in (MIXERS, SCORES) for entry in table.names()]
    found = {roles[name] for roles in (_FEED_FORWARD, _TABLES, *declared) if name in roles}
    if len(found) > 1:
        raise ValueError(f"parameter {name} has two roles in the registries; rename one of them")
    return found.pop() if found else _BY_LAST_NAME.get(names[-1])
