"""ModernBERT-Base's first and longest phase (Warner et al. 2024, arXiv:2412.13663; AnswerDotAI/
ModernBERT, branch `pretraining_documentation`, yamls/modernbert): 149,655,232 parameters as
`ModernBertForMaskedLM`.

    bert-jax prepare --source CORPUS --tokenizer bpe --vocab-size 50368 --output runs/corpus
    bert-jax pretrain modernbert_base --corpus runs/corpus --workdir runs/modernbert

1,719 billion tokens in packed rows of 1,024, of which 30 % are predicted, at a constant rate after
the warm-up. Both thetas are 10,000 in this phase. The published run goes on with rows of 8,192
and a theta of 160,000 in its global layers, then decays; its batch grows from 768 rows to 4,608
over the first 50 billion tokens (docs/lineage.md).
"""

from bert_jax.config import DataConfig, ModelConfig, OptimizerConfig, PhaseConfig, TrainConfig

_ROWS, _LENGTH = 4608, 1024
_RATE = 8e-4


def config() -> TrainConfig:
    return TrainConfig(
        name="modernbert_base",
        objective="mlm",
        model=ModelConfig(
            vocab_size=50368,
            num_hidden_layers=22,
            intermediate_size=1152,
            hidden_act="gelu",
            hidden_dropout_sites=("attention",),
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=8192,
            type_vocab_size=0,
            scale_output_init=True,
            layer_norm_eps=1e-5,
            position_embedding_type="rotary",
            norm_placement="pre",
            first_norm=False,
            norm_bias=False,
            linear_bias=False,
            feed_forward="gated",
            attention_window=128,
            global_attention_every_n_layers=3,
        ),
        data=DataConfig(rows="documents", packing="best_fit"),
        optimizer=OptimizerConfig(
            kind="stable_adamw",
            schedule="constant",
            learning_rate=_RATE,
            warmup_steps=round(3e9 / (_ROWS * _LENGTH)),
            beta2=0.98,
            # Theirs is 1e-5 times the rate's share of its peak.
            weight_decay=1e-5 / _RATE,
            clip_norm=0.0,
        ),
        phases=(
            PhaseConfig(
                sequence_length=_LENGTH,
                steps=round(1719e9 / (_ROWS * _LENGTH)),
                global_batch_size=_ROWS,
                # Held-out rows are scored at 15 %.
                masked_lm_prob=0.3,
            ),
        ),
    )
