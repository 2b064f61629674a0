"""The role of a parameter for the rest of the system, known by its last two names.

A mixer and a score declare roles of names of their own (`Mixer.roles`). The others follow here.
"""

from typing import NamedTuple

from bert_jax.registry import MIXERS, SCORES


class Role(NamedTuple):
    """How weight decay, the compute type and tensor parallelism treat a parameter."""

    is_decayed: bool
    # Else it is used in float32, as it is stored.
    in_compute_type: bool
    # The dim that the mesh's `tensor` axis cuts; None leaves the parameter whole.
    tensor_dim: int | None = None
    # The matrix that other systems keep it in, together with its neighbours of the same name here.
    joined: str = ""
    # Products and look-ups alone read it: its gradient may be summed late (sharding.py).
    is_factor: bool = False


_TABLE, _VECTOR = Role(True, True), Role(False, False)
_MATRIX = _TABLE._replace(is_factor=True)
# A row of it gets the gradient of half of all tokens, which float32 alone adds up.
_SEGMENTS = Role(True, False)
COLUMNS, ROWS = _MATRIX._replace(tensor_dim=1), _MATRIX._replace(tensor_dim=0)
CUT_BIAS = _VECTOR._replace(tensor_dim=0)
# What a position kind does with a table of its own nobody knows.
_TABLES = {
    "word.embedding": _MATRIX,
    "decoder.embedding": _MATRIX,
    "token_type.embedding": _SEGMENTS,
}
_BY_LAST_NAME = {"kernel": _MATRIX, "embedding": _TABLE, "bias": _VECTOR, "scale": _VECTOR}
# The feed-forward part is cut by its inner width, as in Megatron-LM (Shoeybi et al. 2019, section
# 3).
_FEED_FORWARD = {
    "intermediate.kernel": COLUMNS._replace(joined="input"),
    "intermediate.bias": CUT_BIAS,
    "gate.kernel": COLUMNS._replace(joined="input"),
    "gate.bias": CUT_BIAS,
    "output.kernel": ROWS,
}


def role_of(path: tuple) -> Role | None:
    """Returns the role of the parameter at a path of a tree; None where its name has none.

    Raises ValueError where two of them disagree about a name.
    """
    names = [str(getattr(entry, "key", None)) for entry in path[-2:]]
    name = ".".join(names)
    declared = [table[entry].roles for table in (MIXERS, SCORES) for entry in table.names()]
    found = {roles[name] for roles in (_FEED_FORWARD, _TABLES, *declared) if name in roles}
    if len(found) > 1:
        raise ValueError(f"parameter {name} has another role in another entry; rename it in one")
    return found.pop() if found else _BY_LAST_NAME.get(names[-1])
