"""Records the losses of healthy runs and of sick ones, and the curves that are shipped of recipes.

    python tests/golden/make_expected_curves.py run WORKDIR [NAME ...]
    python tests/golden/make_expected_curves.py curves WORKDIR tests/golden/expected_curves.json
    python tests/golden/make_expected_curves.py recorded_runs WORKDIR recorded_runs.json

`run` trains what is missing of the runs below, about an hour on two cores; each logs every step.
SIMPLEWIKI and BOOKS name corpora of `bert-jax prepare` for those that are not on the embedded one;
runs on them are passed over without. `curves` writes what tests/lab/reference_curves replays: means
of ten steps of training, all held-out losses, and what the run knew of itself at its start.
`recorded_runs` writes what the package ships (bert_jax_lab/reference_curves/recorded_runs.json):
runs of a recipe with seeds that no recorded run has.

A sick run is a healthy recipe with one thing wrong. Those that end after a fifth are cut short:
nothing later counts.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.__main__ import main
from bert_jax.config_loader import load_config_json
from bert_jax.data.corpus.store import read_manifest
from bert_jax.runtime.stop import Preemption
from bert_jax.workdir import log_reader
from bert_jax_lab.reference_curves import curve

DEMO, BERT = "modern_tiny_cpu", "tiny_docs_cpu"
_MEAN = 10  # steps
_EVERY = ("--set", "log_every_steps=1", "--set", "checkpoint.every_steps=100000")
_BROKEN_SHARE = 0.2


@dataclasses.dataclass(frozen=True)
class Case:
    """A run: a recipe, its text, what is changed by --set, and what is broken in the code."""

    name: str
    recipe: str
    corpus: str = "docs"
    changes: tuple[str, ...] = ()
    seed: int = 100
    is_sick: bool = False
    broken: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


@contextlib.contextmanager
def _replaced(holder: Any, name: str, value: Any):
    kept = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, kept)


def _labels_of_other_rows():
    """Each row is asked for the words of the row before it."""
    from bert_jax.data.pretraining import pipeline

    made = pipeline.Pipeline.batch_at

    def broken(self, step, rows):
        batch = made(self, step, rows)
        return {**batch, "mlm_targets": batch["mlm_targets"][::-1].copy()}

    return _replaced(pipeline.Pipeline, "batch_at", broken)


def _nothing_is_hidden():
    """The words to guess stand in the row."""
    from bert_jax.data.pretraining import pipeline

    made = pipeline.Pipeline.batch_at

    def broken(self, step, rows):
        batch = made(self, step, rows)
        ids = batch["input_ids"].copy()
        for row, (places, words, weights) in enumerate(
            zip(batch["mlm_positions"], batch["mlm_targets"], batch["mlm_weights"], strict=True)
        ):
            ids[row, places[weights > 0]] = words[weights > 0]
        return {**batch, "input_ids": ids}

    return _replaced(pipeline.Pipeline, "batch_at", broken)


def _words_stand_in_any_order():
    """The tokens of each row are shuffled, [CLS] excepted; what is asked stays where it was."""
    from bert_jax.data.pretraining import pipeline

    made = pipeline.Pipeline.batch_at

    def broken(self, step, rows):
        batch = made(self, step, rows)
        ids, draw = batch["input_ids"].copy(), np.random.default_rng(step)
        for row in ids:
            inside = np.arange(1, np.count_nonzero(row))
            row[inside] = row[draw.permutation(inside)]
        return {**batch, "input_ids": ids}

    return _replaced(pipeline.Pipeline, "batch_at", broken)


def _tokens_see_only_themselves():
    """The mask of attention is wrong: each token is a sequence of its own."""
    from bert_jax.data.pretraining import pipeline

    made = pipeline.Pipeline.batch_at

    def broken(self, step, rows):
        batch = made(self, step, rows)
        alone = np.arange(1, batch["sequence_ids"].shape[1] + 1, dtype=np.int32)
        return {**batch, "sequence_ids": np.where(batch["sequence_ids"] > 0, alone, 0)}

    return _replaced(pipeline.Pipeline, "batch_at", broken)


CASES = (
    Case("demo", DEMO, seed=101),
    Case("demo_again", DEMO, seed=102),
    Case("demo_slower", DEMO, seed=103, changes=("optimizer.learning_rate=1e-3",)),
    Case("demo_with_dropout", DEMO, seed=104, changes=("model.hidden_dropout_prob=0.1",)),
    Case("bert_and_its_plateau", BERT),
    Case("alone", BERT, changes=("objective=mlm", "data.rows=full_sentences", "data.mask=spans")),
    Case(
        "replaced_tokens",
        BERT,
        changes=(
            "objective=rtd",
            "data.rows=electra_segments",
            "data.mask_token_prob=0.85",
            "data.random_token_prob=0",
            "model.norm_placement=pre",
        ),
    ),
    Case("demo_on_books", DEMO, corpus="BOOKS", changes=("model.vocab_size=30522",)),
    Case(
        "small_bert_on_wikipedia",
        "bert_small_cpu",
        corpus="SIMPLEWIKI",
        changes=("phases.0.steps=900", "optimizer.warmup_steps=150", "evaluation.every_steps=100"),
    ),
    Case(
        "fewer_masks",
        DEMO,
        changes=("phases.0.masked_lm_prob=0.15", "phases.0.max_predictions=-1"),
    ),
    Case("rate_x10", DEMO, is_sick=True, changes=("optimizer.learning_rate=2e-2",)),
    Case("rate_by_30", DEMO, is_sick=True, changes=("optimizer.learning_rate=7e-5",)),
    Case("labels", DEMO, is_sick=True, broken=_labels_of_other_rows),
    Case("nothing_hidden", DEMO, is_sick=True, broken=_nothing_is_hidden),
    Case("any_order", DEMO, is_sick=True, broken=_words_stand_in_any_order),
    Case("attention_mask", DEMO, is_sick=True, broken=_tokens_see_only_themselves),
    Case("vocabulary", DEMO, corpus="other_vocabulary", is_sick=True),
    Case("repeated", DEMO, corpus="half_repeated", is_sick=True),
    Case("initial_values", DEMO, is_sick=True, changes=("model.initializer_range=1.0",)),
    Case(
        "dropout",
        DEMO,
        is_sick=True,
        changes=("model.hidden_dropout_prob=0.6", "model.attention_probs_dropout_prob=0.6"),
    ),
)
ANCHORS = tuple(Case(f"anchor{seed}", DEMO, seed=seed) for seed in range(3)) + tuple(
    Case(f"anchor_bert{seed}", BERT, seed=seed) for seed in range(3)
)


# --- corpora -------------------------------------------------------------------------------------


def corpus_of(name: str, workdir: Path) -> Path | None:
    """The corpus of a case, which is made where it can be; None where nobody has named it."""
    if name.isupper():
        return Path(os.environ[name]) if name in os.environ else None
    path, size = workdir / "corpora" / name, ["--vocab-size", "8192"]
    if (path / "corpus.json").exists():
        return path
    sources = ["docs:"]
    if name == "other_vocabulary":
        # Of a text in capitals: the words of this one are not in it.
        vocabulary = workdir / "capitals.txt"
        texts = [t.upper() for t in _texts(workdir)]
        vocabulary.write_text("\n\n".join(texts), encoding="utf-8")
        other = workdir / "corpora" / "capitals"
        if not (other / "corpus.json").exists():
            run_main("prepare", "--source", vocabulary, "--output", other, *size, "--no-lowercase")
        size = ["--tokenizer", other / "tokenizer"]
    elif name == "half_repeated":
        # Every second document is one of twenty, told from the others by a number.
        texts = _texts(workdir)
        repeated = [f"{i}. {texts[i % 20]}" for i in range(len(texts))]
        source = workdir / "half_repeated.txt"
        source.write_text("\n\n".join([*texts[: len(texts) // 2], *repeated[: len(texts) // 2]]))
        sources = [source]
    run_main(
        "prepare", *(word for s in sources for word in ("--source", s)), "--output", path, *size,
        "--validation-fraction", "0.05",
    )  # fmt: skip
    return path


def _texts(workdir: Path) -> list[str]:
    """The documents of the embedded corpus, decoded from its tokens."""
    from bert_jax.data.corpus.store import open_corpus
    from bert_jax.data.tokenizer.tokenizer import load_tokenizer

    docs = corpus_of("docs", workdir)
    assert docs is not None
    split, tokenizer = open_corpus(docs).train, load_tokenizer(docs / "tokenizer")
    tokens = np.concatenate([np.asarray(shard) for shard in split.shards])
    bounds = split.sentence_starts[split.document_starts]
    texts = []
    for first, end in itertools.pairwise(bounds.tolist()):
        texts.append(tokenizer.decode(tokens[first:end].tolist()).replace("\n", " "))
    return texts


# --- runs ----------------------------------------------------------------------------------------


def run_main(*words: Any) -> None:
    code = main([str(word) for word in words])
    if code not in (0, 42, 8):  # a sick run may diverge, or is cut short
        raise SystemExit(code)


def train(case: Case, workdir: Path) -> None:
    corpus, directory = corpus_of(case.corpus, workdir), workdir / "runs" / case.name
    if corpus is None or (directory / "done").exists():
        return
    print(f"== {case.name}", flush=True)
    words = [word for change in case.changes for word in ("--set", change)]
    stop = contextlib.nullcontext()
    if case.is_sick:

        def requested(self: Preemption) -> bool:
            del self
            if not (directory / "config.json").exists():
                return False
            total = load_config_json(directory / "config.json").total_steps
            rows = log_reader.read_rows(directory)
            return bool(rows) and rows[-1]["step"] >= _BROKEN_SHARE * total

        stop = _replaced(Preemption, "requested", requested)
    with case.broken(), stop:
        run_main(
            "pretrain", case.recipe, "--corpus", corpus, "--workdir", directory,
            "--set", f"seed={case.seed}", *words, *_EVERY,
        )  # fmt: skip
    (directory / "done").touch()


def curves(workdir: Path) -> list[dict[str, Any]]:
    found = []
    for case in CASES:
        directory = workdir / "runs" / case.name
        if not (directory / "done").exists():
            print(f"left out: {case.name}", file=sys.stderr)
            continue
        stored = json.loads((directory / "config.json").read_text())
        manifest = read_manifest(Path(stored["corpus"]["directory"]))
        rows = log_reader.read_rows(directory)
        losses = [(row["step"], row.get("mlm_loss")) for row in rows if row.get("split") is None]
        means = []
        for start in range(0, len(losses), _MEAN):
            values = [v for _, v in losses[start : start + _MEAN] if v is not None]
            means.append(round(sum(values) / len(values), 3) if values else None)
        held_out = [
            [row["step"], row["sequence_length"], round(row["mlm_loss"], 3)]
            for row in rows
            if row.get("split") == "validation"
        ]
        shares = manifest.get("unknown_share") or {}
        found.append(
            {
                "name": case.name,
                "is_sick": case.is_sick,
                "recipe": case.recipe,
                "changes": list(case.changes),
                "unigram_entropy_nats": round(manifest["unigram_entropy_nats"], 4),
                "unknown_share": round(shares.get("train", 0.0), 4),
                "training": means,
                "held_out": held_out,
            }
        )
    return found


def anchor_groups(workdir: Path) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    for case in ANCHORS:
        directory = workdir / "runs" / case.name
        rows = log_reader.read_rows(directory)
        stored = json.loads((directory / "config.json").read_text())
        total = load_config_json(directory / "config.json").total_steps
        group = groups.setdefault(
            case.recipe,
            {
                "recipe": case.recipe,
                "corpus": "docs:",
                "unigram_entropy_nats": stored["corpus"]["unigram_entropy_nats"],
                "command": f"python tests/golden/make_expected_curves.py run WORKDIR "
                f"{' '.join(c.name for c in ANCHORS if c.recipe == case.recipe)}",
                "commit": commit,
                "runs": [],
            },
        )
        group["runs"].append(
            {
                "seed": case.seed,
                "training": _plain(curve.training(rows, total)),
                "held_out": _plain(curve.held_out(rows)),
            }
        )
    return list(groups.values())


def _plain(found: curve.Curve) -> dict[str, Any]:
    return {"steps": [*found.steps], "losses": [round(loss, 3) for loss in found.losses]}


def write(path: Path, groups: list[dict[str, Any]]) -> None:
    """Writes a line for each run, or group of runs."""
    lines = ",\n".join(json.dumps(group) for group in groups)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("run", "curves", "anchors"))
    parser.add_argument("workdir", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.what == "run":
        for case in (*ANCHORS, *CASES):
            if not arguments.names or case.name in arguments.names:
                train(case, arguments.workdir)
        return
    made = curves if arguments.what == "curves" else anchor_groups
    write(Path(arguments.names[0]), made(arguments.workdir))


if __name__ == "__main__":
    _main()
