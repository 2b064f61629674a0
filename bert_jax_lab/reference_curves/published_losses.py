"""Figures that papers report at the end of such runs: on other text, so only to compare with."""

from dataclasses import dataclass

from bert_jax.config import TrainConfig


@dataclass(frozen=True)
class Published:
    """A held-out figure of a paper, and the run that it belongs to."""

    figure: str
    value: float
    where: str
    layers: int
    width: int
    heads: int
    # Updates and rows of each.
    steps: int = 1_000_000
    rows: int = 256


_BERT = "Devlin et al. 2019, table 6"
_ROBERTA = "Liu et al. 2019, table 3"
PUBLISHED = (
    Published("perplexity", 5.84, _BERT, 3, 768, 12),
    Published("perplexity", 5.24, _BERT, 6, 768, 3),
    Published("perplexity", 4.68, _BERT, 6, 768, 12),
    Published("perplexity", 3.99, _BERT, 12, 768, 12),
    Published("perplexity", 3.54, _BERT, 12, 1024, 16),
    Published("perplexity", 3.23, _BERT, 24, 1024, 16),
    Published("perplexity", 3.68, _ROBERTA, 12, 768, 12, steps=125_000, rows=2048),
    Published("perplexity", 3.77, _ROBERTA, 12, 768, 12, steps=31_000, rows=8192),
    # At which MLPerf's BERT stops: of phase 2, begun from a checkpoint of phase 1.
    Published("mlm_accuracy", 0.72, "MLPerf's target", 24, 1024, 16),
)
# Half the rows that a paper's run has seen, and what it found begins to be comparable.
_SHARE = 0.5


def published(config: TrainConfig) -> list[Published]:
    """Returns the figures of runs with the shape of this one that saw at most twice its rows.

    Of several with one figure, that whose batch is nearest.
    """
    if "mlm" not in config.head.parts:
        return []
    model = config.model
    shape = (model.num_hidden_layers, model.hidden_size, model.num_attention_heads)
    rows = sum(phase.steps * phase.global_batch_size for phase in config.phases)
    there = [
        each
        for each in PUBLISHED
        if (each.layers, each.width, each.heads) == shape
        and rows >= _SHARE * each.steps * each.rows
    ]
    batch = config.phases[0].global_batch_size
    there.sort(key=lambda each: abs(each.rows - batch))
    return list({each.figure: each for each in reversed(there)}.values())
