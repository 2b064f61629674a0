"""Replaced tokens against masked words, at the shape of ELECTRA-Small and equal compute.

GLUE=DIR bert-jax study electra --workdir runs/electra --corpus runs/simplewiki

Clark et al. 2020 (table 1) have ELECTRA-Small at 79.9 on GLUE and a BERT of the same size at 75.1,
after four days on a GPU. Here each model has half an hour of one core, on rows of 64 tokens. The
blocks have norm first and rotary positions, without which neither leaves the plateau of word
frequencies in that time. GLUE names a folder with SST-2 and CoLA; without it they are downloaded.
"""

import os

from bert_jax.studies.study import Study, Task, Variant

# Rows of 64 tokens; the number of updates is that of half an hour of one core at 2.9 GHz.
SHORT = (
    'phases=[{"sequence_length": 64, "steps": 1500, "global_batch_size": 32}]',
    "model.norm_placement=pre",
    "model.position_embedding_type=rotary",
    "model.hidden_dropout_prob=0",
    "model.attention_probs_dropout_prob=0",
    "model.initializer_range=0.06",
    "output_bias=log_frequency",
    "compute.dtype=float32",
    "optimizer.learning_rate=1e-3",
    "optimizer.warmup_steps=150",
    "optimizer.bias_correction=true",
    "evaluation.every_steps=250",
    "evaluation.num_examples=1024",
    "evaluation.batch_size=64",
    "checkpoint.every_steps=250",
    "log_every_steps=50",
)


def glue(name: str, folder: str) -> Task:
    """Returns a task of GLUE, trained by one recipe whatever the model."""
    data = os.path.join(os.environ["GLUE"], folder) if "GLUE" in os.environ else f"tfds:glue/{name}"
    options = ("--task", name, "--data", data, "--learning-rate", "3e-4", "--train-rows", "8000")
    return Task(name, options=options, length=64, chance=None)


def study() -> Study:
    return Study(
        title="Replaced tokens and masked words, ELECTRA-Small's shape",
        base="electra_small",
        overrides=SHORT,
        variants=(
            Variant(
                "bert",
                (
                    "objective=mlm",
                    "data.mask_token_prob=0.8",
                    "data.random_token_prob=0.1",
                ),
            ),
            Variant("electra"),
        ),
        seeds=2,
        tasks=(glue("sst2", "SST-2"), glue("cola", "CoLA")),
        columns=("mlm_loss", "rtd_auc", "rtd_loss", "sampled_accuracy"),
        equal_compute=True,
        compare_on="tasks",
        notes=("The loss of masked words of `electra` is its generator's, a quarter as wide.",),
    )
