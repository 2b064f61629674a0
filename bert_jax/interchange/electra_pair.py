"""Splits and joins the two models of replaced-token detection, which other libraries store
separately.

The generator's directory is inside the discriminator's. Each can be loaded separately; read
together, they become one model with a single copy of the shared tables.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UsageError, brief
from bert_jax.interchange.name_map import Foreign, leaves
from bert_jax.model.bert import Params
from bert_jax.model.heads.replaced_token import GENERATOR_HEAD, SHARED, generator_params, own_params

# The generator's subdirectory in the discriminator's directory.
FOLDER = "generator"
# A bert-jax key in the generator's `config.json`; other readers ignore it.
SHARING = "embedding_sharing"


class Network(NamedTuple):
    """A model with a separate directory."""

    folder: str
    model: ModelConfig
    head: HeadConfig
    params: Any
    # Additional keys of `config.json`.
    facts: dict[str, Any]


def split(model: ModelConfig, head: HeadConfig, params: Params | None) -> list[Network]:
    """Returns the models to write: one, or two if there is a generator.

    Without `params` the networks also have none.
    """
    if "generator" not in head.parts:
        return [Network("", model, head, params, {})]
    parts = tuple(part for part in head.parts if part != "generator")
    without = params and {name: params[name] for name in ("encoder", *parts)}
    generator = params and generator_params(params, model)
    facts = {SHARING: model.embedding_sharing}
    return [
        Network(
            "",
            model.with_generator_of(ModelConfig()),
            dataclasses.replace(head, parts=parts),
            without,
            {},
        ),
        Network(FOLDER, model.generator(), GENERATOR_HEAD, generator, facts),
    ]


def join(found: Foreign, generator: Foreign, *, declared: Any, source: str) -> Foreign:
    """Returns both as one model. `declared` is the sharing in the generator's config; without it,
    all equal tables are shared.

    Raises UsageError if the generator at `source` cannot be this discriminator's.
    """
    wide, narrow = found.model, generator.model
    there = _shared(found.params, generator.params)
    if declared is not None and declared not in list(SHARED):
        raise UsageError(
            f"{source}: {SHARING} is {brief(declared)}; expected one of {', '.join(SHARED)}"
        )
    if declared is not None and [*SHARED].index(declared) < [*SHARED].index(there):
        raise UsageError(
            f"{source}: {SHARING} is {declared}, but the two models' embeddings differ: set it to "
            f"{there}"
        )
    model = dataclasses.replace(
        wide,
        generator_size=narrow.hidden_size / wide.hidden_size,
        generator_layers=narrow.num_hidden_layers / wide.num_hidden_layers,
        embedding_sharing=declared or there,
    )
    expected = model.generator()
    differing = [
        f"{name} is {value!r}, not {getattr(expected, name)!r}"
        for name, value in vars(narrow).items()
        if value != getattr(expected, name)
    ]
    if differing:
        raise UsageError(f"{source} is not a generator of this model: {'; '.join(differing)}")
    own = own_params(generator.params, model.embedding_sharing)
    return dataclasses.replace(
        found,
        model=model,
        head=dataclasses.replace(found.head, parts=("generator", *found.head.parts)),
        params={**found.params, "generator": own},
        missing=(*found.missing, *generator.missing),
    )


def _shared(params: Params, generator: Params) -> str:
    """Returns the largest sharing that the two networks allow, given their equal tables."""
    ours, theirs = (dict(leaves(tree["encoder"]["embeddings"])) for tree in (params, generator))

    def equal(name: str) -> bool:
        return all(
            path in ours and np.array_equal(ours[path], leaf)
            for path, leaf in theirs.items()
            if path[0] == name
        )

    return next(kind for kind, tables in SHARED.items() if all(map(equal, tables)))
