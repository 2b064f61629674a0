"""Normalizes the tensors of a Hugging Face file to the names of its family.

Files vary without changing the model: a training wrapper prefixes every name, a writer stores one
of two tied tensors, old versions have other spellings. Each variation is normalized here, with a
note where the result differs from the file; an ambiguous file is an error.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from bert_jax.config import ModelConfig
from bert_jax.errors import UsageError, some
from bert_jax.interchange.family import Family
from bert_jax.progress import note_once

# Modules that torch.compile, FSDP and activation checkpointing insert at any depth.
_WRAPPERS = re.compile(
    r"(^|\.)(?:(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+"
)
# Buffers that old versions saved with the parameters.
_BUFFERS = (".position_ids", ".token_type_ids", ".inv_freq")


def renamed(
    tensors: Mapping[str, np.ndarray],
    family: Family,
    *,
    source: str,
    ignore_unexpected: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Returns the tensors of a file under the names in `family`, without buffers.

    Modules of training wrappers and a common prefix of all names are removed, with a note; names
    that `ignore_unexpected` matches may lack the prefix, and are then omitted. Raises UsageError if
    other names lack the prefix (for example, in a second encoder), or if two names become equal.
    """
    plain = {name: _WRAPPERS.sub(r"\1", name) for name in tensors if not name.endswith(_BUFFERS)}
    counted = {
        short
        for name, short in plain.items()
        if not any(fnmatchcase(each, p) for each in (name, short) for p in ignore_unexpected)
    }
    prefix = _prefix(counted, family)
    if outside := sorted(name for name in counted if not name.startswith(prefix)):
        raise UsageError(
            f"{source}: the names of the encoder begin with {prefix!r}, but {some(outside)} do "
            "not; name them with `ignore_unexpected` to read the rest"
        )
    origins: dict[str, str] = {}
    for name, short in plain.items():
        if not short.startswith(prefix):
            continue
        ours = _modern(short.removeprefix(prefix), family)
        if (other := origins.setdefault(ours, name)) != name:
            raise UsageError(
                f"{source}: {other} and {name} are both {ours}; remove the wrong one from the file"
            )
    if longer := [name for name, short in plain.items() if prefix or short != name]:
        short = plain[longer[0]].removeprefix(prefix)
        note_once(f"{source}: reading {longer[0]} as {short}, and other names likewise")
    return {ours: tensors[name] for ours, name in origins.items()}


def _prefix(names: Collection[str], family: Family) -> str:
    """Returns the prefix of the first encoder's names; "" if they have none."""
    bases = "|".join(re.escape(base) for base in (f"{family.base}.", *family.prefixes))
    layer = re.escape(family.names.layer_prefix.removeprefix(f"{family.base}."))
    layer = layer.replace(re.escape("{}"), r"\d+")
    pattern = re.compile(rf"((?:[^.]+\.)*?)(?:{bases})?{layer}")
    return min((match[1] for name in names if (match := pattern.match(name))), default="")


def _modern(name: str, family: Family) -> str:
    """Returns the name in current versions: in older files, norm parameters are gamma and beta, and
    the prefix differs or is absent.
    """
    name = name.removesuffix(".gamma") + ".weight" if name.endswith(".gamma") else name
    name = name.removesuffix(".beta") + ".bias" if name.endswith(".beta") else name
    for other, ours in family.prefixes.items():
        name = ours + name.removeprefix(other) if name.startswith(other) else name
    bare = ("embeddings.", "embeddings_project.", "encoder.", "pooler.", "LayerNorm.")
    bare += ("layers.", "final_norm.", "embed_tokens.", "norm.")
    return f"{family.base}.{name}" if name.startswith(bare) else name


def output_normalized(
    tensors: dict[str, np.ndarray], family: Family, model: ModelConfig, *, source: str
) -> tuple[dict[str, np.ndarray], ModelConfig]:
    """Returns the tensors with the output over the vocabulary named as in `family.names`, and the
    model with a tied or untied output matrix.

    A tied matrix may be stored under either of its names, or under both. If these differ, the
    matrix is untied, regardless of the config (transformers 5 modeling_utils.py, `tie_weights`).
    The bias may also have either name; transformers 5 adds `decoder.bias`. A bias shorter than the
    vocabulary is padded with zeros (ibid., `_adjust_bias`).
    """
    fixed, found = family.names.fixed, dict(tensors)
    if "mlm.decoder" not in fixed:
        return found, model
    table, decoder = (f"{fixed[n]}.weight" for n in ("encoder.embeddings.word", "mlm.decoder"))
    if model.tie_word_embeddings and decoder in found:
        if table not in found or np.array_equal(found[table], found[decoder]):
            found[table] = found.pop(decoder)
        else:
            note_once(
                f"{source}: {decoder} differs from {table}, so the two are read as untied although "
                "tie_word_embeddings is true in config.json; transformers 4 reads only one of them"
            )
            model = dataclasses.replace(model, tie_word_embeddings=False)
    if "mlm" not in fixed:
        return found, model
    bias, copy = (f"{fixed[n]}.bias" for n in ("mlm", "mlm.decoder"))
    if copy != bias and copy in found:
        if bias in found and not np.array_equal(found[bias], found[copy]):
            note_once(f"{source}: ignoring {bias}, which differs from {copy}")
        found[bias] = found.pop(copy)
    values = found.get(bias)
    if values is not None and values.ndim == 1 and len(values) < model.vocab_size:
        lacking = model.vocab_size - len(values)
        note_once(f"{source}: padding {bias} with {lacking} zeros to the vocabulary size")
        found[bias] = np.pad(values, (0, lacking))
    return found, model
