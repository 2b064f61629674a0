"""RoBERTa-Base (Liu et al. 2019) with the recipe of fairseq's README: 124,697,433 parameters as
`RobertaForMaskedLM`.

    bert-jax prepare --source CORPUS --tokenizer bpe --vocab-size 50265 --output-dir runs/corpus
    bert-jax pretrain roberta_base --corpus runs/corpus --workdir runs/roberta

125,000 updates of 2,048 rows of 512 tokens, full sentences without next sentence prediction
(fairseq, examples/roberta/config/pretraining/base.yaml). The README has other learning rates for
other batches: 1e-4 for 256 rows, 7e-4 for 8,192. The paper (Table 9) has 500,000 updates of 8,000
rows at 6e-4, with a warm-up of 24,000.
"""

from bert_jax.config import DataConfig, ModelConfig, PhaseConfig, TrainConfig
from bert_jax.update.optimizers import AdamW
from bert_jax.update.schedules import LinearDecay


def config() -> TrainConfig:
    return TrainConfig(
        name="roberta_base",
        objective="mlm",
        model=ModelConfig(
            vocab_size=50265,
            hidden_act="gelu",
            # The exported table has 514 rows, two of which are not used by tokens.
            max_position_embeddings=512,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
        ),
        data=DataConfig(sequence_format="full_sentences"),
        optimizer=AdamW(
            schedule=LinearDecay(),
            learning_rate=5e-4,
            warmup_steps=10_000,
            beta2=0.98,
            clip_norm=0.0,
        ),
        phases=(PhaseConfig(sequence_length=512, steps=125_000, global_batch_size=2048),),
    )
