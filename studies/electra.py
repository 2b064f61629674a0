"""Replaced tokens against masked words, at the shape of ELECTRA-Small and equal compute.

GLUE=DIR bert-jax study electra --workdir runs/electra --corpus runs/simplewiki

Clark et al. 2020 (table 1) have ELECTRA-Small at 79.9 on GLUE and a BERT of the same size at 75.1,
after four days on a GPU. Here each model has half an hour of one core, on rows of 64 tokens, and
each task 4,000 rows of 32 tokens. The blocks have norm first and rotary positions, without which
neither leaves the plateau of word frequencies in that time. GLUE names a folder with SST-2 and
CoLA; without it they are downloaded.
"""

import os

from bert_jax_lab.studies.study import Study, StudyTask, Variant

# Some 1,000 tokens a second on one core at 2.9 GHz. Many small updates: at this size they teach
# more than few large ones.
SHORT = (
    'phases=[{"sequence_length": 64, "steps": 1600, "global_batch_size": 16}]',
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
    "evaluation.every_steps=200",
    "evaluation.num_examples=512",
    "evaluation.batch_size=64",
    "checkpoint.every_steps=200",
    "log_every_steps=50",
)


def glue(name: str, folder: str) -> StudyTask:
    """Returns a task of GLUE, trained by one recipe whatever the model."""
    data = os.path.join(os.environ["GLUE"], folder) if "GLUE" in os.environ else f"tfds:glue/{name}"
    options = ("--task", name, "--data", data, "--learning-rate", "3e-4", "--train-rows", "4000")
    return StudyTask(name, options=options, epochs=2.0, length=32, chance=None)


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
