"""Writes task_heads.npz: what transformers' classes of tasks make of a masked-LM model that we
write, and the losses of 50 steps of fine-tuning them.

    python -m tests.golden.make_task_heads

Run it with transformers 4 and again with 5 (4.57.6 and 5.24.0 made the file, with torch 2.13.0):
each adds what is its own. Their head comes from the masked-LM head of the file; the classifier, on
both sides, is `classifier` here.
"""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.interchange import huggingface
from tests.golden import make_eurobert, make_modernbert, make_ultrabert
from tests.models import vocabulary

FILE = Path(__file__).parent / "task_heads.npz"
STEPS, LABELS = 50, ("no", "yes", "perhaps")
_MAKERS = {"ModernBert": make_modernbert, "EuroBert": make_eurobert, "Ultrabert": make_ultrabert}
# Both kinds are among them.
_LAYERS = {"Ultrabert": 3}


class Case(NamedTuple):
    family: str
    task: str
    head: HeadConfig
    pooling: str = "cls"
    # The others are compared by their logits alone.
    is_trained: bool = False
    # The answers of UltraBERT are learned at a quarter of it: at .02 the order of the rows of a
    # batch alone changes their losses by 1e-5, that of the other cases by 1e-6.
    rate: float = 0.02

    @property
    def model(self) -> ModelConfig:
        return dataclasses.replace(
            _MAKERS[self.family].MODEL,
            num_hidden_layers=_LAYERS.get(self.family, 2),
            classifier_pooling=self.pooling,
        )

    @property
    def versions(self) -> tuple[str, ...]:
        return ("4", "5") if self.family == "ModernBert" else ("5",)


_TEXTS = HeadConfig(parts=("pooler", "sequence_classifier"), labels=LABELS)
_TOKENS = HeadConfig(parts=("token_classifier",), labels=LABELS)
_ANSWERS = HeadConfig(parts=("span_classifier",))
CASES = {
    "cls": Case("ModernBert", "SequenceClassification", _TEXTS, "cls", True),
    "mean": Case("ModernBert", "SequenceClassification", _TEXTS, "mean", True),
    "tokens": Case("ModernBert", "TokenClassification", _TOKENS, "cls", True),
    "answers": Case("ModernBert", "QuestionAnswering", _ANSWERS, "cls", True),
    "eurobert late": Case("EuroBert", "SequenceClassification", _TEXTS, "late", True),
    "eurobert mean": Case("EuroBert", "SequenceClassification", _TEXTS, "mean"),
    "eurobert cls": Case("EuroBert", "SequenceClassification", _TEXTS, "cls"),
    "eurobert tokens": Case("EuroBert", "TokenClassification", _TOKENS, "late", True),
    "ultrabert tokens": Case("Ultrabert", "TokenClassification", _TOKENS, "cls", True),
    "ultrabert answers": Case("Ultrabert", "QuestionAnswering", _ANSWERS, "cls", True, 0.005),
}


class Rows(NamedTuple):
    """`ids` int32 `[8, 32]`, `lengths` int32 `[8]`, and for a class a text `labels` `[8]`, a class
    a token `[8, 32]`, first and last token `[8, 2]`.
    """

    ids: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray


def rows_of(case: Case, step: int) -> Rows:
    """Five batches, in turns: what is learned of each shows in the losses.

    Of answers the rows have no padding, whose scores only we leave out.
    """
    draw = np.random.default_rng([7, step % 5])
    lengths = np.array([32, 27, 24, 17, 12, 9, 6, 5], np.int32)
    if case.task == "QuestionAnswering":
        lengths = np.full(8, 32, np.int32)
    ids = draw.integers(5, 60, (8, 32)) * (np.arange(32) < lengths[:, None])
    shape = {"T": (8, 32), "S": (8,), "Q": (8, 2)}[case.task[0]]
    labels = draw.integers(0, 32 if case.task[0] == "Q" else len(LABELS), shape)
    return Rows(ids.astype(np.int32), lengths, np.sort(labels).astype(np.int32))


def classifier(outputs: int, width: int) -> dict[str, np.ndarray]:
    """In our layout, `[inputs, outputs]`."""
    draw = np.random.default_rng(11)
    kernel, bias = draw.standard_normal((width, outputs)), draw.standard_normal(outputs)
    return {"kernel": np.float32(kernel * width**-0.5), "bias": np.float32(bias * 0.1)}


def masked_lm(folder: Path, case: Case) -> Path:
    """Writes the directory that both sides begin from."""
    huggingface.write(
        folder / "hf",
        make_modernbert.params(case.model),
        case.model,
        tokenizer=vocabulary(folder / "words"),
        head=make_modernbert.HEAD,
    )
    return folder / "hf"


def _of(case: Case, directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """The logits of the first batch, and the losses."""
    import torch
    import transformers

    kind = getattr(transformers, f"{case.family}For{case.task}")
    theirs, told = kind.from_pretrained(
        directory,
        num_labels=2 if case.task[0] == "Q" else len(LABELS),
        attn_implementation="eager",
        output_loading_info=True,
    )
    is_apart = case.family == "Ultrabert" and case.task[0] == "Q"
    last = "qa_outputs" if is_apart else "classifier"
    fresh = {f"{last}.weight", f"{last}.bias"}
    if case.family == "EuroBert" and case.task[0] == "S":
        fresh |= {"dense.weight", "dense.bias"}
    assert set(told["missing_keys"]) == fresh, told
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name in fresh:
                drawn = classifier(len(parameter), case.model.hidden_size)
                leaf = drawn["bias" if name.endswith("bias") else "kernel"]
                parameter.copy_(torch.tensor(leaf.T))

    def outputs(step: int, *, is_learned: bool) -> Any:
        rows = rows_of(case, step)
        mask = np.arange(32) < rows.lengths[:, None]
        given: dict[str, Any] = {}
        if is_learned and case.task[0] == "Q":
            first, last = torch.tensor(rows.labels).long().T
            given = {"start_positions": first, "end_positions": last}
        elif is_learned:
            labels = rows.labels if rows.labels.ndim == 1 else np.where(mask, rows.labels, -100)
            given = {"labels": torch.tensor(labels).long()}
        ids, allowed = torch.tensor(rows.ids).long(), torch.tensor(mask).long()
        return theirs(ids, attention_mask=allowed, **given)

    with torch.no_grad():
        found = outputs(0, is_learned=False)
    logits = (
        torch.stack([found.start_logits, found.end_logits], -1)
        if case.task[0] == "Q"
        else found.logits
    )
    losses = []
    optimizer = torch.optim.SGD(theirs.train().parameters(), lr=case.rate)
    for step in range(STEPS * case.is_trained):
        optimizer.zero_grad()
        loss = outputs(step, is_learned=True).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return logits.numpy(), np.float32(losses)


def main() -> None:
    import transformers

    version, *_ = transformers.__version__.split(".")
    parts = dict(np.load(FILE)) if FILE.exists() else {}
    for name, case in CASES.items():
        if version not in case.versions:
            continue
        with tempfile.TemporaryDirectory() as folder:
            logits, losses = _of(case, masked_lm(Path(folder), case))
        parts[f"{version}.{name}.logits"] = logits
        if case.is_trained:
            parts[f"{version}.{name}.losses"] = losses
            print(version, name, losses[:5], losses[-5:])
    np.savez_compressed(FILE, **parts)


if __name__ == "__main__":
    main()
