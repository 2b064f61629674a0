"""The two models of replaced-token detection: as one here, as two directories elsewhere.

The discriminator's directory has the generator's inside it. Each loads on its own; read together
they are one model again, whose shared tables are there once.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UsageError, brief
from bert_jax.interchange.name_map import ImportedModel, leaves
from bert_jax.model.bert import Params
from bert_jax.model.heads.replaced_token import GENERATOR_HEAD, SHARED, generator_params, own_params

# Of the generator, within the discriminator's directory.
FOLDER = "generator"
# Ours, in the generator's `config.json`; others ignore it.
SHARING = "embedding_sharing"


class Network(NamedTuple):
    """A model that has a directory of its own, and the trees that are written there."""

    folder: str
    model: ModelConfig
    head: HeadConfig
    trees: tuple[Any, ...]
    # Beside what every model has in its `config.json`.
    facts: dict[str, Any]


def split(model: ModelConfig, head: HeadConfig, trees: tuple[Params, ...]) -> list[Network]:
    """Returns the models to write: one, or two where there is a generator.

    `trees` are the parameters, and moments in the same form.
    """
    if "generator" not in head.parts:
        return [Network("", model, head, trees, {})]
    parts = tuple(part for part in head.parts if part != "generator")
    without = tuple({name: tree[name] for name in ("encoder", *parts)} for tree in trees)
    discriminator = model.with_generator_of(ModelConfig())
    generators = tuple(generator_params(tree, model) for tree in trees)
    return [
        Network("", discriminator, dataclasses.replace(head, parts=parts), without, {}),
        Network(
            FOLDER,
            model.generator(),
            GENERATOR_HEAD,
            generators,
            {SHARING: model.embedding_sharing},
        ),
    ]


def join(
    found: ImportedModel, generator: ImportedModel, *, declared: Any, source: str
) -> ImportedModel:
    """Returns both as one model. `declared` is what the generator's config says of sharing; without
    it, all is shared that is equal.

    Raises UsageError if the generator at `source` is none that the discriminator could have here.
    """
    wide, narrow = found.model, generator.model
    there = _shared(found.params, generator.params)
    if declared is not None and declared not in list(SHARED):
        raise UsageError(f"{source}: {SHARING} is {brief(declared)}, not {', '.join(SHARED)}")
    if declared is not None and [*SHARED].index(declared) < [*SHARED].index(there):
        raise UsageError(
            f"{source}: {SHARING} is {declared}, but the two models' embeddings differ: "
            f"{there} would be right"
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
        raise UsageError(f"{source} is no generator of this model: {'; '.join(differing)}")
    moments = None
    if found.moments is not None and generator.moments is not None:
        first, second = (
            {**one, "generator": own_params(two, model.embedding_sharing)}
            for one, two in zip(found.moments, generator.moments, strict=True)
        )
        moments = (first, second)
    own = own_params(generator.params, model.embedding_sharing)
    return dataclasses.replace(
        found,
        model=model,
        head=dataclasses.replace(found.head, parts=("generator", *found.head.parts)),
        params={**found.params, "generator": own},
        moments=moments,
        step=found.step if moments is not None else 0,
        missing=(*found.missing, *generator.missing),
    )


def _shared(params: Params, generator: Params) -> str:
    """Returns the most that the two networks can share: whose tables are equal."""
    ours, theirs = (dict(leaves(tree["encoder"]["embeddings"])) for tree in (params, generator))

    def equal(name: str) -> bool:
        return all(
            path in ours and np.array_equal(ours[path], leaf)
            for path, leaf in theirs.items()
            if path[0] == name
        )

    return next(kind for kind, tables in SHARED.items() if all(map(equal, tables)))
