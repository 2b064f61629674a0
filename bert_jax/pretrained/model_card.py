"""A model card (README.md) for an exported model, from the run's own records.

Only what the workdir says: config.json, metrics.jsonl, events.jsonl, result.json. What nobody
recorded is named as missing, not guessed. The front matter is that of the Hugging Face Hub.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import ModelConfig, Optimizer, TrainConfig
from bert_jax.config.fields import Kind, fields_of
from bert_jax.data.tokenizer import hub
from bert_jax.errors import shown
from bert_jax.registry import OBJECTIVES
from bert_jax.workdir import goodput, log_reader, run_directory
from bert_jax.workdir.run_directory import MEAN_OF, versions

CARD = "README.md"
_TASKS = {  # the last part of a head -> the Hub's name of what it is for
    "sequence_classifier": "text-classification",
    "token_classifier": "token-classification",
    "span_classifier": "question-answering",
    "mlm": "fill-mask",
    "nsp": "fill-mask",
}
_POINTS = 12  # of the held-out curve
# Where a table's cell ends, or HTML, code or a link begins. As entities no backslash undoes them.
_MARKUP = {ord(sign): f"&#{ord(sign)};" for sign in "|<`["}


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
    """Writes `directory`/README.md for the model that `workdir` holds at `step`.

    `library` is the Hub's name of what loads the files beside it, if it has one, `model_type` that
    of their kind, `license` that of the licence under which they may be used, and `data_sets` those
    of what it was trained on, beside those that the records name.
    """
    front = {"library_name": library, "license": license, "datasets": data_sets}
    front["tags"] = [model_type, "bert-jax"]
    text = "\n\n".join(_sections(workdir, config, step=step, parameters=parameters, front=front))
    (directory / CARD).write_text(text + "\n", encoding="utf-8")


def _sections(
    workdir: Path, config: TrainConfig, *, step: int, parameters: int, front: dict[str, Any]
) -> Iterable[str]:
    from huggingface_hub import ModelCardData  # half a second

    stored = run_directory.stored(workdir)
    task = stored.get("task") or {}
    sources = [*(stored.get("corpus") or {}).get("sources", ()), *stored.get("sources", ())]
    named = [name for source in sources if (name := hub.data_set_of(source))]
    purpose = _TASKS.get(config.head.parts[-1] if config.head.parts else "", "feature-extraction")
    if front["library_name"] == "sentence-transformers":
        purpose = "sentence-similarity"
    front |= {
        "language": (stored.get("corpus") or {}).get("language"),
        "datasets": [*dict.fromkeys([*named, *front["datasets"]])] or None,
        # Of a place on this machine nobody else knows what it is.
        "base_model": hub.name_of(stored.get("init_from") or stored.get("imported_from")),
        "pipeline_tag": purpose,
    }
    yield f"---\n{ModelCardData(**front).to_yaml()}\n---"
    is_only_imported = "imported_from" in stored and not log_reader.read_rows(workdir)
    what = f"fine-tuned on {prose(task.get('name'))}" if task else "pre-trained"
    what = "imported" if is_only_imported else what
    ours = versions()["bert-jax"]
    yield f"# {prose(config.name)}"
    yield f"An encoder of the BERT family, {what} with bert-jax {ours}; step {step:,}."
    model = config.model
    yield "## Model\n\n" + markdown_table(
        ("layers", "width", "heads", "feed-forward", "activation", "vocabulary", "positions",
         "parts", "parameters"),
        [(model.num_hidden_layers, model.hidden_size, model.num_attention_heads,
          model.intermediate_size, model.hidden_act, f"{model.vocab_size:,}",
          model.max_position_embeddings, ", ".join(("encoder", *config.head.parts)),
          f"{parameters:,}")],
    )  # fmt: skip
    kinds = {"position embedding type": code(model.position_embedding_type)}
    kinds["mixer"] = _kind(model.mixer)
    defaults = (ModelConfig.position_embedding_type, ModelConfig.mixer)
    chosen = (model.position_embedding_type, model.mixer)
    if others := [k for k, a, b in zip(kinds, chosen, defaults, strict=True) if a != b]:
        yield "\n".join(f"- {name}: {kinds[name]}" for name in others)
    yield "## Data\n\n" + _data(stored)
    if is_only_imported:
        yield "## Training\n\nImported from another system; there is no record of it here."
    else:
        yield "## Recipe\n\n" + _recipe(config, stored)
        yield from _results(workdir, config, stored, step)
        yield "## Hardware and versions\n\n" + _hardware(workdir, stored)
    yield (
        "## Not in these records\n\nIntended use, licence of the text, known biases: whoever "
        "publishes this model has to add them."
    )


def _data(stored: dict[str, Any]) -> str:
    corpus, task = stored.get("corpus") or {}, stored.get("task")
    lines = []
    if "fingerprint" in corpus:
        lines.append(f"Corpus {code(corpus['fingerprint'][:12])}, tokenizer "
                     f"{code(corpus.get('tokenizer_hash', '')[:12])}.")  # fmt: skip
    if corpus.get("sources"):
        lines.append(f"Sources: {', '.join(map(code, corpus['sources']))}.")
    counts = [
        (corpus.get(split) or {}).get(name)
        for split in ("train", "validation")
        for name in ("documents", "tokens")
    ]
    if all(type(count) is int for count in counts):
        lines.append(
            "Trained on {:,} documents, {:,} tokens; held out: {:,} documents, {:,} tokens.".format(
                *counts
            )
        )
    if task:
        lines.append(f"Task {code(task.get('name'))}, data {code(str(stored.get('data'))[:12])}.")
        if stored.get("sources"):
            lines.append(f"Sources: {', '.join(map(code, stored['sources']))}.")
        if stored.get("rows"):
            rows = (
                f"{prose(name)} {number:,}"
                for name, number in stored["rows"].items()
                if type(number) is int
            )
            lines.append(f"Rows: {', '.join(rows)}.")
    began = stored.get("init_from") or stored.get("imported_from")
    if began:
        # The name says what it was; where it lay is nobody's business.
        lines.append(f"Parameters began as {_beginning(began)}.")
    return "\n".join(lines) or "Not recorded."


def _beginning(source: str) -> str:
    """Returns what a run began from, or what an average is of, without the places."""
    if not source.startswith(MEAN_OF):
        return f"those of {code(Path(source).name)}"
    paths = [Path(path) for path in source.removeprefix(MEAN_OF).split(", ")]
    names = [f"{p.parents[1].name}/{p.name}" if p.name.isdigit() else p.name for p in paths]
    return f"the mean of {', '.join(map(code, names))}"


def _recipe(config: TrainConfig, stored: dict[str, Any]) -> str:
    optimizer, recipe = config.optimizer, stored.get("recipe") or {}
    phases = markdown_table(
        ("phase", "steps", "rows a step", "tokens a row"),
        [(number, f"{phase.steps:,}", phase.global_batch_size, phase.sequence_length)
         for number, phase in enumerate(config.phases)],
    )  # fmt: skip
    facts = {
        "learning rate": f"{optimizer.learning_rate:g}, {optimizer.warmup_steps:,} steps of "
        f"warm-up, then {_kind(optimizer.schedule)}",
        **{
            f"from phase {number} on": ", ".join(
                f"`{path}` {_kind(value) if isinstance(value, Kind) else prose(value)}"
                for path, value in phase.overrides.items()
            )
            for number, phase in enumerate(config.phases)
            if phase.overrides
        },
        "optimizer": _kind(optimizer, _ADAM),
        "dropout": f"{config.model.hidden_dropout_prob:g}, of attention "
        f"{config.model.attention_probs_dropout_prob:g}",
        "products in": config.compute.dtype,
        "seed": config.seed,
        **(
            {"held": f"the embeddings and the first {optimizer.frozen_layers} layers"}
            if optimizer.frozen_layers
            else {}
        ),
        **{prose(name.replace("_", " ")): prose(value) for name, value in recipe.items()},
    }
    if not recipe:
        data = config.data
        rates = [f"{phase.mask_rate(data.masked_lm_prob):.0%}" for phase in config.phases]
        rows = f"rows are {code(data.rows)}"
        if data.rows == "sentence_pairs":
            rows = f"next sentence random in {data.random_next_prob:.0%}"
        facts["masking"] = (
            f"{code(data.mask)}: {', then '.join(dict.fromkeys(rates))} of the tokens, of "
            f"these {data.mask_token_prob:.0%} [MASK] and {data.random_token_prob:.0%} at random; "
            f"{rows}"
        )
    return phases + "\n\n" + "\n".join(f"- {name}: {value}" for name, value in facts.items())


# The options of Adam that all optimizers have.
_ADAM = ("beta1", "beta2", "epsilon", "weight_decay", "clip_norm")


def _kind(options: Kind, shared: Sequence[str] = ()) -> str:
    """Returns a kind and its options, numbers before switches: those of its own and `shared`."""
    base = {*fields_of(Optimizer)} - {*shared} if isinstance(options, Optimizer) else ()
    found = {n: getattr(options, n) for n in fields_of(type(options)) if n not in base}
    ordered = sorted(found.items(), key=lambda item: isinstance(item[1], bool))
    facts = (f"{prose(name.replace('_', ' '))} {_value(value)}" for name, value in ordered)
    return ", ".join((code(options.kind), *facts))


def _value(value: Any) -> str:
    """Returns the value of a field or an option in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " and ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, int | float) else prose(value)


def _results(
    workdir: Path, config: TrainConfig, stored: dict[str, Any], step: int
) -> Iterable[str]:
    result = run_directory.result_of(workdir)
    if result.get("steps") != step:  # those of the run's end are not these parameters'
        result = {}
    if result.get("scores"):
        rows = [
            (split, metric, f"{value:.4f}{log_reader.unit_of(stored.get('task'), metric)}")
            for split, scores in result["scores"].items()
            for metric, value in scores.items()
        ]
        text = markdown_table(("split", "metric", "value"), rows)
        if result.get("diverged"):
            text += "\n\nThis run diverged: it is no better than one answer for all rows."
        yield f"## Scores\n\n{text}\n\nOne run, seed {config.seed}."
    curve = [r for r in log_reader.read_rows(workdir) if r.get("split") and r["step"] <= step]
    task = stored.get("task")
    if task and curve:
        metrics = task.get("metrics") or ()
        shown = [[f"{r['step']:,}", r["split"], *(_number(r.get(n)) for n in metrics)]
                 for r in curve]  # fmt: skip
        named = [f"{name}{log_reader.unit_of(task, name)}" for name in metrics]
        yield "## Scores on the way\n\n" + markdown_table(("step", "split", *named), shown)
    if task:
        if not result.get("scores"):
            yield (
                f"## Scores\n\nNone: a run is scored at its end, step {config.total_steps:,}; "
                f"this is step {step:,}."
            )
        return
    if not curve:
        yield "## Held-out loss\n\nNot recorded."
        return
    entropy = run_directory.entropy_of(stored, curve)
    curve = [row for row in curve if "/" not in row["split"]]  # not those of single sources
    every = max(1, -(-len(curve) // _POINTS))
    shown = curve[::-1][::every][::-1]  # the last one is always among them
    known = config.objective in OBJECTIVES
    # Of an objective of somebody's own, whose file is not executed here, the loss is known.
    found = OBJECTIVES[config.objective].figures if known else ()
    figures = [(figure.heading, figure.name) for figure in found] or [("loss", "loss")]
    text = markdown_table(
        ("step", *(heading for heading, _ in figures)),
        [(f"{r['step']:,}", *(_number(r.get(name)) for _, name in figures)) for r in shown],
    )
    if entropy is not None:
        text += f"\n\nOn held-out documents. The corpus's unigram entropy is {entropy:.3f} nats."
    yield f"## Held-out loss\n\n{text}"


def _hardware(workdir: Path, stored: dict[str, Any]) -> str:
    account = goodput.account(workdir)
    starts = [e for e in log_reader.read_events(workdir) if e.get("event") == "start"]
    devices = sorted(
        {prose(f"{e.get('devices', '?')} x {e.get('device_kind', 'device')}") for e in starts}
    )
    lines = [f"- devices: {', '.join(devices) or 'not recorded'}"]
    if account["wall_seconds"]:
        lines.append(
            f"- {account['wall_seconds'] / 3600:.2f} hours of wall time in {account['starts']} "
            f"start{'s' if account['starts'] != 1 else ''}, {account['goodput']:.0%} of it training"
        )
    lines.append(f"- updates left out: {account['skipped_updates']}")
    used = (starts[-1].get("versions") if starts else None) or stored.get("versions") or {}
    lines.append("- " + ", ".join(prose(f"{name} {value}") for name, value in used.items()))
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a table in Markdown, its head first. Cells are words, whatever is in them."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(prose, line)) + " |" for line in lines)


def prose(text: object) -> str:
    """Returns a text from outside as words of Markdown, on one line."""
    return shown(str(text)).translate(_MARKUP)


def code(text: object) -> str:
    """Returns a text from outside as code of Markdown, on one line."""
    line = shown(str(text))
    fence = "`" * max([1, *(len(run) + 1 for run in re.findall("`+", line))])
    space = " " * ("`" in line)  # or its own would be part of the fence
    return f"{fence}{space}{line}{space}{fence}"
