"""Writes the model card (README.md) of an exported run: architecture, data, training, metrics,
license.

All facts come from the records of the workdir (config.json, metrics.jsonl, result.json) or from the
user; a fact without a record is omitted. The front matter follows the Hugging Face Hub.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import TrainConfig
from bert_jax.data.tokenizer import hub
from bert_jax.registry import OBJECTIVES
from bert_jax.workdir import log_reader, run_directory
from bert_jax.workdir.run_directory import versions

CARD = "README.md"
# The last part of a head -> the hub's name of its task.
_TASKS = {
    "sequence_classifier": "text-classification",
    "token_classifier": "token-classification",
    "span_classifier": "question-answering",
    "mlm": "fill-mask",
    "nsp": "fill-mask",
}


def write_model_card(
    directory: Path,
    workdir: Path,
    config: TrainConfig,
    *,
    step: int,
    parameters: int,
    library: str | None,
    model_type: str = "bert",
    license: str | None = None,
    data_sets: Sequence[str] = (),
) -> None:
    """Writes `directory`/README.md for the model of `workdir` at `step`.

    `library` is the hub's name of the library that loads the files, `model_type` the written
    family, and `license` and `data_sets` are hub names; data sets in the records are added.
    """
    from huggingface_hub import ModelCardData  # takes half a second to import

    stored = run_directory.stored(workdir)
    corpus, task = stored.get("corpus") or {}, stored.get("task") or {}
    sources = [*(corpus.get("sources") or ()), *(stored.get("sources") or ())]
    named = [name for source in sources if (name := hub.data_set_of(source))]
    purpose = _TASKS.get(config.head.parts[-1] if config.head.parts else "", "feature-extraction")
    front = ModelCardData(
        library_name=library,
        license=license,
        datasets=[*dict.fromkeys([*named, *data_sets])] or None,
        tags=[model_type, "bert-jax"],
        language=corpus.get("language"),
        base_model=hub.name_of(stored.get("init_from")),  # not for local paths
        pipeline_tag="sentence-similarity" if library == "sentence-transformers" else purpose,
    )
    how = f"fine-tuned on {task.get('name')}" if task else "pre-trained"
    how = "averaged from checkpoints" if stored.get("mean_of") else how
    model = config.model
    sections = [
        f"---\n{front.to_yaml()}\n---",
        f"# {config.name}",
        f"A {model_type} encoder, {how} with bert-jax {versions()['bert-jax']}: "
        f"{model.num_hidden_layers} layers of width {model.hidden_size}, {parameters:,} "
        f"parameters. Modules: {', '.join(('encoder', *config.head.parts))}.",
        "## Data\n\n" + ("\n".join(_data(stored, sources)) or "Not recorded."),
        "## Training\n\n" + _steps(config, step),
        *_figures(workdir, config, stored, step),
        f"## License\n\n{license or 'Not stated. Add a license before you publish this model.'}",
    ]
    (directory / CARD).write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def _data(stored: dict[str, Any], sources: Sequence[str]) -> Iterator[str]:
    if sources:
        yield f"- sources: {', '.join(sources)}"
    for split in ("train", "validation"):
        counts = (stored.get("corpus") or {}).get(split) or {}
        if counts.keys() >= {"documents", "tokens"}:
            yield f"- {split}: {counts['documents']:,} documents, {counts['tokens']:,} tokens"
    for split, rows in (stored.get("rows") or {}).items():
        yield f"- {split}: {rows:,} rows"
    began = stored.get("mean_of") or [stored.get("init_from")]
    if names := [_name(source) for source in began if source]:
        yield f"- {'mean of' if stored.get('mean_of') else 'started from'}: {', '.join(names)}"


def _name(source: str) -> str:
    """Returns the name of a checkpoint without its directory: a step keeps its workdir's name."""
    path = Path(source)
    return f"{path.parents[1].name}/{path.name}" if path.name.isdecimal() else path.name


def _steps(config: TrainConfig, step: int) -> str:
    phases = [
        (number, f"{phase.steps:,}", phase.global_batch_size, phase.sequence_length)
        for number, phase in enumerate(config.phases)
    ]
    table = markdown_table(("phase", "steps", "sequences per step", "tokens per sequence"), phases)
    return f"Step {step:,} of {config.total_steps:,}, seed {config.seed}.\n\n{table}"


def _figures(
    workdir: Path, config: TrainConfig, stored: dict[str, Any], step: int
) -> Iterator[str]:
    """Yields the scores of a fine-tuned model, or the validation metrics of a pre-trained one."""
    result, task = run_directory.result_of(workdir), stored.get("task")
    if result.get("scores") and result.get("steps") == step:
        rows = [
            (split, metric, f"{value:.4f}{log_reader.unit_of(task, metric)}")
            for split, scores in result["scores"].items()
            for metric, value in scores.items()
        ]
        yield "## Scores\n\n" + markdown_table(("split", "metric", "value"), rows)
        if result.get("diverged"):
            yield "This run diverged: it predicts the same answer for all examples."
        return
    held_out = [r for r in log_reader.read_rows(workdir) if r.get("split") and r["step"] <= step]
    curve = [row for row in held_out if "/" not in row["split"]]  # without single sources
    if not curve:
        return
    if task:
        names = headings = [name for name in task.get("metrics") or () if name in curve[-1]]
    elif config.objective in OBJECTIVES:
        figures = OBJECTIVES[config.objective].figures
        figures = [figure for figure in figures if figure.name in curve[-1]]
        names, headings = [f.name for f in figures], [f.heading for f in figures]
    else:  # a custom objective
        names = headings = ["loss"]
    last = curve[-1]
    rows = [(heading, f"{last[n]:.4g}") for heading, n in zip(headings, names, strict=True)]
    text = f"Step {last['step']:,}.\n\n" + markdown_table(("metric", "value"), rows)
    if (entropy := run_directory.entropy_of(stored, held_out)) is not None:
        text += f"\n\nThe unigram entropy of the corpus is {entropy:.3f} nats."
    yield f"## Validation metrics\n\n{text}"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a table in Markdown with a header row."""
    lines = [columns, ["---"] * len(columns), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)
