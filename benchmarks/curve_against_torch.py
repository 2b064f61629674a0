"""Trains the same model in torch: same initial weights, batches, update rule and validation set.

    pip install -e '.[parity]'
    bert-jax prepare --source simplewiki.txt.gz --tokenizer vocab.txt --output-dir runs/simplewiki
    bert-jax pretrain bert_small_cpu --corpus runs/simplewiki --workdir runs/small
    python benchmarks/curve_against_torch.py runs/simplewiki runs/small [STEPS]

Trains transformers' BERT on the batches of the finished run in WORKDIR, for STEPS steps or all of
them, and prints both validation curves. Each side draws its own dropout masks; everything else is
equal. torch uses its fastest form: SDPA attention, `torch.optim.AdamW`, the vocabulary head on
masked positions only. Afterwards both sides train 40 more interleaved steps, and the script prints
the medians of their seconds per step. STEPS = 0 only measures these.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bert_jax.runtime.host_allocator import keep_freed_memory

keep_freed_memory()  # as in `bert-jax pretrain`, before importing jax; also applies to torch

import jax  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch_updates import Updates  # noqa: E402
from transformers import BertConfig, BertForPreTraining  # noqa: E402

from bert_jax import config_loader  # noqa: E402
from bert_jax.config import TrainConfig  # noqa: E402
from bert_jax.data.corpus.store import open_corpus  # noqa: E402
from bert_jax.data.pretraining.pipeline import EvaluationSet, Pipeline  # noqa: E402
from bert_jax.interchange import huggingface_config  # noqa: E402
from bert_jax.interchange.families import BERT_FAMILY  # noqa: E402
from bert_jax.model import bert, sharding  # noqa: E402
from bert_jax.objectives.mlm_nsp import MLM_NSP  # noqa: E402
from bert_jax.training import device_feed  # noqa: E402
from bert_jax.training.evaluate import EVALUATION_SEED  # noqa: E402
from bert_jax.update.state import TrainState  # noqa: E402
from bert_jax.update.step import compile_lowered, lower_train_step  # noqa: E402
from bert_jax.workdir import log_reader  # noqa: E402


def losses(model, batch) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Returns the sums of the MLM and NSP losses, and the number of masked positions."""
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in batch.items()}
    out = model.bert(
        input_ids=tensors["input_ids"].long(),
        token_type_ids=tensors["token_type_ids"].long(),
        attention_mask=tensors["sequence_ids"].long(),
    )
    rows, places = torch.nonzero(tensors["mlm_weights"], as_tuple=True)
    hidden = out.last_hidden_state[rows, tensors["mlm_positions"][rows, places].long()]
    mlm = torch.nn.functional.cross_entropy(
        model.cls.predictions(hidden),
        tensors["mlm_targets"][rows, places].long(),
        reduction="sum",
    )
    real = tensors["nsp_weights"][:, 0] > 0
    nsp = torch.nn.functional.cross_entropy(
        model.cls.seq_relationship(out.pooler_output)[real],
        tensors["nsp_labels"][real, 0].long(),
        reduction="sum",
    )
    return mlm, nsp, float(len(rows))


def held_out_loss(model, examples: EvaluationSet, rows: int) -> float:
    model.eval()
    total, count = 0.0, 0.0
    with torch.no_grad():
        for index in range(examples.num_batches):
            mlm, _, masked = losses(model, examples.batch_at(index, range(rows)))
            total, count = total + mlm.item(), count + masked
    model.train()
    return total / count


def their_model(config: TrainConfig) -> BertForPreTraining:
    """Returns transformers' BERT with the initial weights of a run of `config`."""
    their_config = huggingface_config.config_of(config.model)
    model = BertForPreTraining(BertConfig(attn_implementation="sdpa", **their_config))
    params = bert.init_params(config.model, seed=config.seed)
    tensors = {n: torch.tensor(t) for n, t in BERT_FAMILY.to_tensors(params).items()}
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    return model.train()


def main(corpus_directory: Path, workdir: Path, steps: int | None) -> None:
    config = config_loader.load_config_json(workdir / "config.json")
    corpus = open_corpus(corpus_directory)
    assert config.optimizer.bias_correction and len(config.phases) == 1
    phase, evaluation = config.phases[0], config.evaluation
    shared = {
        "collator": MLM_NSP,
        "vocabulary": corpus.vocabulary,
        "options": config.data,
    }
    pipeline = Pipeline(corpus.train, phases=config.phases, seed=config.seed, **shared)
    examples = EvaluationSet(
        corpus.validation,
        sequence_length=phase.sequence_length,
        max_predictions=phase.max_predictions,
        num_examples=evaluation.num_examples,
        batch_size=evaluation.batch_size,
        seed=EVALUATION_SEED,
        **shared,
    )
    rows = log_reader.read_rows(workdir)
    ours = {r["step"]: r["mlm_loss"] for r in rows if r.get("split") == "validation"}

    torch.manual_seed(config.seed)
    torch.set_num_threads(os.cpu_count() or 1)
    model = their_model(config)
    update = Updates(model, config)

    def their_step(step: int, batch) -> None:
        mlm, nsp, masked = losses(model, batch)
        update(mlm / masked + nsp / phase.global_batch_size, step)

    every_row = range(phase.global_batch_size)
    print(f"{'step':>6} {'ours':>8} {'torch':>8} {'difference':>10}")
    for step in range(config.total_steps if steps is None else steps):
        their_step(step, pipeline.batch_at(step, every_row))
        done = step + 1
        if done in ours:
            theirs = held_out_loss(model, examples, evaluation.batch_size)
            row = {
                "step": done,
                "ours": ours[done],
                "torch": theirs,
            }
            with (workdir / "torch_reference.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                f"{done:6} {ours[done]:8.3f} {theirs:8.3f} {theirs - ours[done]:+10.3f}", flush=True
            )

    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        state = TrainState.initial(config, mesh)
        batch = device_feed.abstract_batch(phase, fields=MLM_NSP.fields, mesh=mesh)
        train = compile_lowered(lower_train_step(config, state, batch, objective=MLM_NSP))
        seconds: dict[str, list[float]] = {"ours": [], "torch": []}
        for step in range(40):
            batch = pipeline.batch_at(step, every_row)
            placed = jax.device_put(batch, sharding.batch_sharding(mesh))
            began = time.perf_counter()
            state, values = train(state, placed)
            jax.block_until_ready((state, values))
            between = time.perf_counter()
            their_step(step, batch)
            seconds["torch"].append(time.perf_counter() - between)
            seconds["ours"].append(between - began)
    medians = {side: float(np.median(values[5:])) for side, values in seconds.items()}
    print(
        f"seconds per step, interleaved: ours {medians['ours']:.3f}, torch {medians['torch']:.3f}, "
        f"ratio {medians['torch'] / medians['ours']:.2f}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else None)
