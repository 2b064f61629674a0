"""A small text with structure to learn, and a model small enough to learn it in a test.

Sixty short stories from a grammar: each has its own hero, animal and place, so that words follow
from their neighbours, and a sentence can be told from another story's.
"""

import json
import random
from pathlib import Path
from typing import Any

from bert_jax import config as configs
from bert_jax.config import (
    CheckpointConfig,
    ComputeConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    TrainConfig,
)

_HEROES = ("Ada", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Henry", "Irene", "Jonas")
# An animal, what it eats and where it lives: three words that go together everywhere.
_ANIMALS = (
    ("horse", "hay", "stable"),
    ("cat", "fish", "house"),
    ("rabbit", "carrots", "garden"),
    ("bee", "nectar", "hive"),
    ("bear", "honey", "forest"),
    ("owl", "mice", "tower"),
)
_TIMES = ("In the morning", "At noon", "In the evening", "At night", "In winter", "In summer")
_SENTENCES = (
    "{hero} has a {size} {animal} and keeps it in the {home}.",
    "The {animal} of {hero} eats {food} every day.",
    "{time} {hero} goes to the {home} and brings {food}.",
    "{time} the {animal} sleeps in the {home}.",
    "When the {animal} is hungry, it asks {hero} for {food}.",
    "{hero} likes the {size} {animal} more than anything else.",
    "Nobody in the {home} is as {size} as the {animal}.",
)


def documents(*, number: int = 60, seed: int = 0) -> list[str]:
    """Stories of two paragraphs, a paragraph a line."""
    draw = random.Random(seed)
    stories = []
    for _ in range(number):
        animal, food, home = draw.choice(_ANIMALS)
        names = {
            "hero": draw.choice(_HEROES),
            "animal": animal,
            "food": food,
            "home": home,
            "size": draw.choice(("small", "large", "old", "young")),
        }
        paragraphs = [
            " ".join(
                draw.choice(_SENTENCES).format(time=draw.choice(_TIMES), **names)
                for _ in range(draw.randint(4, 8))
            )
            for _ in range(2)
        ]
        stories.append("\n".join(paragraphs))
    return stories


def write(path: Path, **options: Any) -> Path:
    path.write_text("\n\n".join(documents(**options)) + "\n", encoding="utf-8")
    return path


def tiny_config(**changes: Any) -> TrainConfig:
    """Two layers of width 32, two phases of two lengths; `changes` are fields of TrainConfig."""
    values: dict[str, Any] = {
        "name": "tiny",
        "model": ModelConfig(
            vocab_size=240,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=48,
        ),
        "compute": ComputeConfig(dtype="float32"),
        "optimizer": OptimizerConfig(learning_rate=5e-3, warmup_steps=10, bias_correction=True),
        "phases": (
            PhaseConfig(sequence_length=32, steps=160, global_batch_size=16, max_predictions=5),
            PhaseConfig(sequence_length=48, steps=40, global_batch_size=8, max_predictions=7),
        ),
        "evaluation": EvaluationConfig(every_steps=40, num_examples=50, batch_size=16),
        "checkpoint": CheckpointConfig(every_steps=40, keep_last=3),
        "log_every_steps": 1,
    }
    return TrainConfig(**(values | changes))


def write_config(path: Path, config: TrainConfig) -> Path:
    path.write_text(json.dumps(configs.to_dict(config)), encoding="utf-8")
    return path
