"""Changes of the BabyLM recipe, one each, at equal words: ten million, once.

    BLIMP=blimp_filtered bert-jax study examples/babylm/ablations.py \
        --corpus runs/babylm/corpus --workdir runs/ablations

The models have 2 layers of width 128. Set BLIMP to a file or folder of BLiMP's pairs, on which each
model is scored; without it, nothing is scored.
"""

import dataclasses
import os
from pathlib import Path

from bert_jax.config import TrainConfig
from bert_jax.config_loader import load_config
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax.registry import PROBES
from bert_jax_lab.probes.minimal_pairs import score_file
from bert_jax_lab.probes.probe import Probe, ProbeResult
from bert_jax_lab.studies.study import Study, Variant

# For 15.0 million tokens: `examples/babylm/settings.py ... --epochs 1` prints the number.
_STEPS = 1881


def config() -> TrainConfig:
    base = load_config("babylm_small_cpu")
    return dataclasses.replace(
        base,
        model=dataclasses.replace(
            base.model,
            num_hidden_layers=2,
            hidden_size=128,
            num_attention_heads=2,
            intermediate_size=344,
        ),
        optimizer=dataclasses.replace(base.optimizer, warmup_steps=_STEPS // 25),
        phases=(dataclasses.replace(base.phases[0], steps=_STEPS),),
        evaluation=dataclasses.replace(base.evaluation, every_steps=_STEPS // 3),
        checkpoint=dataclasses.replace(base.checkpoint, every_steps=_STEPS // 3, at_words=()),
    )


def study() -> Study:
    return Study(
        title="Changes of the BabyLM recipe at ten million words",
        base="ablations.py",
        variants=(
            Variant("recipe"),
            Variant("mask_15", ("phases.0.masked_lm_prob=0.15",)),
            Variant("whole_words", ("data.masking=whole_words",)),
        ),
        seeds=3,
        probes=("blimp",) if "BLIMP" in os.environ else (),
    )


def _blimp(
    source: LoadedCheckpoint, tokenizer: Tokenizer, corpus: Corpus | None
) -> list[ProbeResult]:
    """Returns the mean accuracy of the paradigms."""
    found, _ = score_file(source, tokenizer, Path(os.environ["BLIMP"]))
    return found[-1:]


if "BLIMP" in os.environ:
    PROBES.register("blimp", Probe(_blimp, parts=("mlm",)))
