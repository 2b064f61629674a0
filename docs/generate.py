"""Writes what the documentation has from the code: data-flow.svg, and some of its tables.

    python docs/generate.py          # writes them
    python docs/generate.py --check  # exit code 1 if one is not up to date

The tables of options of verbs are made of the classes in the modules of the verbs
(bert_jax/cli/options.py), the tables of options and of what may change on resume of the
declarations in bert_jax/config/. The table of calls in architecture.md has the lines of
each function from `main` to the step. The table of plans in tpu.md is that of docs/plans.json
(docs/take_plans.py). The picture has the stages
below, in rows from top to bottom; the tables and their fields are read from bert_jax/registry.py,
and what a stage is for from the first sentence of its module's docstring.
"""

import argparse
import ast
import dataclasses
import functools
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax import config_loader
from bert_jax.cli import options, usage
from bert_jax.config import TrainConfig
from bert_jax.config.fields import Kind, OptionField, choices_of, fields_of, is_kind, is_section
from bert_jax.config.resume import is_saved

_ROOT = Path(__file__).parents[1]
_PACKAGE = _ROOT / "bert_jax"
_TITLE = 16  # letters


def _purpose(module: Path) -> str:
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    text = text.split("\n\n")[0].replace("\n", " ")
    sentence = re.split(r"(?<=[.;])(?<! al\.)\s", text, maxsplit=1)[0]
    # What comes before a colon is enough, unless it is a mere title.
    head = sentence.partition(": ")[0]
    return (head if len(head) > _TITLE else sentence).rstrip(".:;")


# --- the picture ---------------------------------------------------------------------------------


class Stage(NamedTuple):
    """One box: something that data become, in which module, and who can exchange how."""

    title: str
    module: str
    # The table of registry.py whose entries do it; without one, a note instead.
    table: str = ""
    note: str = ""


# Each row is read from left to right, and the rows from top to bottom.
_FROM_TEXT = (
    Stage("text", "data/sources/read.py", "FORMATS"),
    Stage("documents", "data/corpus/decide.py", note="each of them once"),
    Stage("sentences, ids", "data/corpus/encode.py", note="by data/tokenizer"),
    Stage("corpus directory", "data/corpus/store.py", note="NumPy arrays, checksums"),
)
_OF_A_CORPUS = (
    Stage("rows", "data/pretraining/sentence_pairs.py", "SEQUENCE_FORMATS"),
    Stage("masks", "data/pretraining/masking.py", "MASKINGS"),
    Stage("batch", "data/pretraining/pipeline.py", "OBJECTIVES"),
)
_OF_A_TASK = (
    Stage("a task's files", "tasks/task_data.py", "TASKS"),
    Stage("rows with labels", "tasks/task.py", "TASK_KINDS"),
    Stage("batch", "data/tasks/packing.py", note="several texts in a row"),
)
# Both kinds of batch lead to it.
_TO_DEVICES = Stage("device arrays", "training/device_feed.py", note="cut over the mesh by rows")
_IN_A_STEP = (
    (
        Stage("embeddings", "model/layers.py", "POSITIONS"),
        Stage("blocks", "model/encoder.py", "ATTENTION"),
        Stage("outputs", "model/bert.py", "PARTS"),
    ),
    (
        Stage("sums", "objectives/objective.py", "OBJECTIVES"),
        Stage("loss", "objectives/objective.py", note="a ratio of global sums"),
        Stage("direction", "update/optimizers.py", "OPTIMIZERS"),
        Stage("new state", "update/step.py", "SCHEDULES"),
    ),
    (
        Stage("checkpoint", "workdir/checkpoint.py", note="bytes verified, resumed from"),
        Stage("parameters", "pretrained/load.py", note="read by evaluate, finetune, embed, ..."),
        Stage("export", "interchange/huggingface.py", "FAMILIES"),
    ),
)
_WIDTH, _MARGIN, _GAP, _PAD = 960, 24, 26, 12
_BOX, _LABEL, _BETWEEN = 78, 22, 34
_ROW = _LABEL + _BOX + _PAD
_TOP = 62
_DESCRIPTION = (
    "Boxes from top to bottom. Text becomes documents, sentences and ids, and a corpus directory; "
    "of that, or of a task's files, rows and batches are made; these become device arrays; the "
    "model's embeddings, blocks and outputs follow; then sums, the loss, the optimiser's direction "
    "and the new state; at last a checkpoint, its parameters and an export. A blue label names the "
    "table of registry.py whose entries can exchange a stage, and the field that chooses one."
)
_STYLE = """
    text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
    .title { font-size: 15px; font-weight: 600; fill: #1f2328; }
    .module { font-size: 11px; font-family: ui-monospace, Menlo, Consolas, monospace; }
    .module, .note, .room { fill: #59636e; }
    .note, .table { font-size: 11.5px; }
    .room { font-size: 12px; font-weight: 600; }
    .table { fill: #0a3069; }
    .arrow { fill: none; stroke: #59636e; stroke-width: 1.6; marker-end: url(#head); }
"""


class Table(NamedTuple):
    """One table of registry.py: the field that chooses from it, and its built-in names."""

    field: str
    names: tuple[str, ...]


def tables() -> dict[str, Table]:
    """Returns the tables of registry.py by name, from its source."""
    found = {}
    for node in ast.parse((_PACKAGE / "registry.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            field, entries = node.value.args
            assert isinstance(node.targets[0], ast.Name) and isinstance(field, ast.Constant)
            texts = (n.value for n in ast.walk(entries) if isinstance(n, ast.Constant))
            names = tuple(text for text in texts if ":" not in text)
            found[node.targets[0].id] = Table(field.value, names)
    return found


class Box(NamedTuple):
    """A stage and where it lies."""

    stage: Stage
    x: float
    y: float
    width: float
    height: float = _BOX

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def room(self) -> str:
        return self.stage.module.rpartition("/")[0]


def picture() -> str:
    """Returns data-flow.svg."""
    y = _TOP + _LABEL
    width = (_WIDTH - 2 * _MARGIN - 3 * _GAP) / 4
    rows = [_row(_FROM_TEXT, y, width)]
    for stages in (_OF_A_CORPUS, _OF_A_TASK):
        y += _ROW + _BETWEEN
        rows.append(_row(stages, y, width))
    last = rows[1][-1]
    below = rows[2][-1].y + _BOX - last.y
    to_devices = Box(_TO_DEVICES, last.x + width + _GAP, last.y, width, below)
    for stages in _IN_A_STEP:
        y += _ROW + _BETWEEN
        rows.append(_row(stages, y, (_WIDTH - 2 * _MARGIN + _GAP) / len(stages) - _GAP))
    boxes = [*itertools.chain(*rows), to_devices]
    arrows = [
        *(_across(a, b) for row in rows for a, b in itertools.pairwise(row)),
        *(_across(row[-1], to_devices) for row in rows[1:3]),
        _down(rows[0][-1], rows[1][0]),
        _down(to_devices, rows[3][0]),
        *(_down(above[-1], row[0]) for above, row in itertools.pairwise(rows[3:])),
    ]
    height = y + _BOX + _PAD + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img" aria-labelledby="name about">',
        '<title id="name">How text becomes a checkpoint in bert-jax</title>',
        f'<desc id="about">{escape(_DESCRIPTION)}</desc>',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#59636e"/></marker></defs>',
        _rectangle(0.5, 0.5, _WIDTH - 1, height - 1, "#ffffff", "#d1d9e0", radius=12),
        *_legend(),
        *(line for row in (*rows, [to_devices]) for line in _rooms(row)),
        *(f'<path class="arrow" d="{path}"/>' for path in arrows),
        *(line for box in boxes for line in _drawn(box, tables())),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _row(stages: tuple[Stage, ...], y: float, width: float) -> list[Box]:
    return [Box(s, _MARGIN + i * (width + _GAP), y, width) for i, s in enumerate(stages)]


def _legend() -> Iterator[str]:
    yield _rectangle(_MARGIN, 18, 176, 20, "#ddf4ff", "#54aeff", radius=10)
    yield _text(_MARGIN + 88, 32, "TABLE \u00b7 field that chooses", "table")
    text = "a table of registry.py: an entry of yours can take the place of the built-in one"
    yield _text(_MARGIN + 188, 32, text, "note", anchor="start")


def _rooms(row: list[Box]) -> Iterator[str]:
    """Yields a frame around the neighbours of a row that are of one room, with its name."""
    for room, found in itertools.groupby(row, key=lambda box: box.room):
        first, *others = found
        last = others[-1] if others else first
        x, width = first.x - 8, last.x + last.width - first.x + 16
        frame = (x, first.y - _LABEL, width, first.height + _LABEL + 10)
        yield _rectangle(*frame, "#f6f8fa", "#d1d9e0", radius=8)
        yield _text(first.x, first.y - 7, f"{room}/", "room", anchor="start")


def _drawn(box: Box, known: dict[str, Table]) -> Iterator[str]:
    stage, top = box.stage, box.y + (box.height - _BOX) / 2
    purpose = _purpose(_PACKAGE / stage.module)
    text = f"{stage.title}: {stage.module}. {purpose}."
    if stage.table:
        field, names = known[stage.table]
        text += f" {stage.table}, chosen by {field}: {', '.join(names)}."
    yield f"<g><title>{escape(text)}</title>"
    yield _rectangle(box.x, box.y, box.width, box.height, "#ffffff", "#59636e", radius=6)
    yield _text(box.middle, top + 23, stage.title, "title")
    yield _text(box.middle, top + 41, stage.module.rpartition("/")[2], "module")
    if stage.table:
        label = f"{stage.table} \u00b7 {known[stage.table].field}"
        width = min(box.width - 12, 6.4 * len(label) + 18)
        yield _rectangle(box.middle - width / 2, top + 51, width, 20, "#ddf4ff", "#54aeff", 10)
        yield _text(box.middle, top + 65, label, "table")
    else:
        yield _text(box.middle, top + 65, stage.note, "note")
    yield "</g>"


def _across(a: Box, b: Box) -> str:
    return f"M{a.x + a.width:g} {a.y + _BOX / 2:g}H{b.x:g}"


def _down(a: Box, b: Box) -> str:
    """Returns the way from the end of a row to the beginning of the next one."""
    between = b.y - _LABEL - (_BETWEEN - 10 + _PAD) / 2
    # Right of the middle, where no room's name is.
    there = b.x + 0.75 * b.width
    return f"M{a.middle:g} {a.y + a.height:g}V{between:g}H{there:g}V{b.y:g}"


def _rectangle(
    x: float, y: float, width: float, height: float, fill: str, stroke: str, radius: float
) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


# --- the tables of options -----------------------------------------------------------------------


def with_options(text: str) -> str:
    """Returns configuration.md with the table of each verb's options."""
    text = _with_table(text, "Command line", _OPTIONS, _rows(options.Verb, inherited=True))
    for verb in usage.VERBS:
        rows = _rows(usage.options_of(verb))
        text = _with_table(text, re.escape(f"`bert-jax {verb}`"), _OPTIONS, rows)
    return text


_OPTIONS = ("option", "default", "meaning")


def _rows(declared: type, *, inherited: bool = False) -> Iterator[tuple[str, ...]]:
    of_all = {field.name for field in dataclasses.fields(options.Verb)}
    for option in options.described(declared):
        if inherited or option.name not in of_all:
            yield f"`{_name(option)}`", _default(option), _meaning(option)


def _with_table(
    text: str, heading: str, head: Iterable[str], cells: Iterable[Iterable[str]]
) -> str:
    """Returns the text with another table under a heading, which is a regular expression."""
    rows = [f"| {' | '.join(head)} |"]
    rows.append(re.sub(r"[^|]+", "---", rows[0]))
    for row in cells:
        joined = " | ".join(cell.replace("|", "\\|") for cell in row)
        rows.append(f"| {joined} |".replace("|  |", "| |"))
    pattern = rf"(^#+ {heading}\n(?:(?!^[#|]).*\n)*)(?:^\|.*\n)+"
    found, count = re.subn(
        pattern, lambda m: m[1] + "\n".join(rows) + "\n", text, count=1, flags=re.MULTILINE
    )
    assert count == 1, heading
    return found


def _name(option: options.Option) -> str:
    value = option.keywords.get("metavar", "")
    if "choices" in option.keywords:
        value = "|".join(option.keywords["choices"])
    if option.flag is None:
        return value if "metavar" in option.keywords else option.name.upper()
    if option.keywords.get("action") is argparse.BooleanOptionalAction:
        return f"{option.flag}`, `{option.flag.replace('--', '--no-', 1)}"
    return f"{option.flag} {value}".strip()


def _default(option: options.Option) -> str:
    keywords = option.keywords
    if keywords.get("required") or not (option.flag or "default" in keywords):
        return "required"
    is_value = re.fullmatch(r"[\w.-]+", option.default) is not None
    return f"`{option.default}`" if is_value else _marked(option.default)


def _meaning(option: options.Option) -> str:
    text = _marked(option.text.replace(" ({configs})", ""))
    if option.flag is None and "choices" in option.keywords:
        text += f": {', '.join(f'`{choice}`' for choice in option.keywords['choices'])}"
    return f"{text[0].upper()}{text[1:]}."


def _marked(text: str) -> str:
    """Returns the text with options in back-ticks, where they are in none yet."""
    parts = re.split(r"(`[^`]*`)", text)
    mark = functools.partial(re.sub, r"(?<![\w-])--[a-z][\w-]*", r"`\g<0>`")
    return "".join(part if part.startswith("`") else mark(part) for part in parts)


# --- the way from the command line to the step ----------------------------------------------------

_MOST_LINES = 300


def with_lines(text: str) -> str:
    """Returns architecture.md with the lines of the functions from `main` to the step.

    Raises ValueError where a function does not name the next one, or all together are too long.
    """
    pattern = re.compile(r"^(\| \d \| `(\w+)` in `([\w/]+\.py)` \| )\d+", re.MULTILINE)
    bodies = [_body(_PACKAGE / module, name) for _, name, module in pattern.findall(text)]
    names = [name for _, name, _ in pattern.findall(text)]
    for body, callee in zip(bodies, names[1:], strict=False):
        inside = [node for statement in body for node in ast.walk(statement)]
        named = {getattr(node, "id", getattr(node, "attr", None)) for node in inside}
        if callee not in named:
            raise ValueError(f"architecture.md: the function before {callee} does not call it")
    lines = [(body[-1].end_lineno or 0) - body[0].lineno + 1 for body in bodies]
    if sum(lines) > _MOST_LINES:
        raise ValueError(f"from main to the step: {sum(lines)} lines, more than {_MOST_LINES}")
    counts = iter(lines)
    return pattern.sub(lambda match: f"{match[1]}{next(counts)}", text)


def _body(module: Path, name: str) -> list[ast.stmt]:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    (found,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    return found.body[1:] if ast.get_docstring(found) else found.body


# --- the tables of fields ------------------------------------------------------------------------


def with_fields(text: str) -> str:
    """Returns configuration.md with the tables of fields, of resumption and of shipped configs."""
    sections: dict[str, list[str]] = {}
    for path in documented():
        section = path.partition(".")[0]
        inside = any(each.startswith(f"{section}.") for each in documented())
        sections.setdefault(section if inside and section != "hooks" else "", []).append(path)
    for name, paths in sections.items():
        heading = f"`{name}`.*" if name else "The run"
        text = _with_table(text, heading, ("field", "default", "meaning"), map(_described, paths))
    resuming = (
        (how, ", ".join(_together(sections, how)))
        for how in ("free", "with `--allow-change`", "fixed")
    )
    text = _with_table(text, "What may change on resume", ("on resume", "fields"), resuming)
    head = ("config", "layers x width, heads", "tokens", "phases: rows x length, steps",
            "learning rate, warm-up", "type")  # fmt: skip
    return _with_table(text, "Shipped configs", head, map(_shipped, config_loader.shipped_names()))


class Documented(NamedTuple):
    """An option, and the kinds that have it: none for all of them."""

    field: OptionField
    kinds: tuple[str, ...] = ()


@functools.cache
def documented() -> dict[str, Documented]:
    """Returns the options of a config and of all built-in kinds, by path; N stands for a number."""
    return dict(_options_of(TrainConfig, ""))


def _options_of(cls: Any, prefix: str) -> Iterator[tuple[str, Documented]]:
    for name, field in fields_of(cls).items():
        path, number = f"{prefix}{name}", "" if field.item is field.annotation else ".N"
        if is_kind(field.item):
            yield f"{path}.kind" if path == "optimizer" else path, Documented(field)
            if prefix != "phases.N.":  # they are those of the optimizer
                yield from _options_of_kinds(field.item, f"{path}{number}.")
        elif is_section(field.item):
            yield from _options_of(field.item, f"{path}{number}.")
        else:
            yield path, Documented(field)


def _options_of_kinds(base: Any, prefix: str) -> Iterator[tuple[str, Documented]]:
    yield from _options_of(base, prefix)
    kinds: dict[str, list[str]] = {}
    found: dict[str, OptionField] = {}
    for kind in base.table.names():
        for name, field in fields_of(base.of_kind(kind)).items():
            if base.table.is_builtin(kind) and name not in fields_of(base):
                kinds.setdefault(name, []).append(kind)
                found.setdefault(name, field)
    for name, field in found.items():
        yield f"{prefix}{name}", Documented(field, tuple(kinds[name]))


def _described(path: str) -> tuple[str, str, str]:
    field, kinds = documented()[path]
    assert field.doc.endswith("."), path
    doc, default = field.doc, field.default
    table = field.item.table if is_kind(field.item) else field.choices
    if table is not None:
        doc += f" Built in: {', '.join(f'`{n}`' for n in table.names() if table.is_builtin(n))}."
    elif choices := choices_of(field.item):
        named = [choice for choice in choices if f"`{choice}`" not in doc]
        doc += f" Or {', '.join(f'`{choice}`' for choice in named)}." if named else ""
    if kinds:
        doc += f" Of {', '.join(f'`{kind}`' for kind in kinds)} only."
    default = default.kind if isinstance(default, Kind) else default
    return f"`{path}`", f"`{default if isinstance(default, str) else json.dumps(default)}`", doc


def _together(sections: dict[str, list[str]], how: str) -> Iterator[str]:
    """Yields the options that may change in that way; a section at once, if that is most of it."""
    for name, paths in sections.items():
        others = [path for path in paths if _on_resume(path) != how]
        if not name or 2 * len(others) > len(paths):
            yield from (f"`{path}`" for path in paths if path not in others)
        else:
            names = ", ".join(f"`{path.partition('.')[2]}`" for path in others)
            yield f"`{name}.*`" + (f" (but not {names})" if names else "")


def _on_resume(path: str) -> str:
    if documented()[path].field.free:
        return "free"
    return "fixed" if is_saved(path) else "with `--allow-change`"


def _shipped(name: str) -> tuple[str, ...]:
    config = config_loader.load_config(name)
    model, optimizer = config.model, config.optimizer
    phases = []
    # A batch that grows stands once.
    for length, same in itertools.groupby(config.phases, lambda phase: phase.sequence_length):
        each = list(same)
        rows = list(dict.fromkeys(phase.global_batch_size for phase in each))
        if len(rows) < len(each):
            phases += [f"{p.global_batch_size} x {length}, {p.steps:,}" for p in each]
        else:
            steps = sum(phase.steps for phase in each)
            ends = " to ".join(str(size) for size in dict.fromkeys((rows[0], rows[-1])))
            phases.append(f"{ends} x {length}, {steps:,}")
    return (
        f"`{name}`",
        f"{model.num_hidden_layers} x {model.hidden_size}, {model.num_attention_heads}",
        f"{model.vocab_size:,}",
        "; ".join(phases),
        f"{optimizer.learning_rate:g}, {optimizer.warmup_steps:,}",
        config.compute.dtype,
    )


# --- the table of plans ---------------------------------------------------------------------------


def with_plans(text: str) -> str:
    """Returns tpu.md with the table of plans.json."""
    head = ("`bert-jax plan`", "devices", "rows x length", "memory, GiB per device",
            "M cycles", "computation, ms", "exposed, ms (all collectives)", "step, ms", "MFU",
            "whole recipe, hours", "dollars")  # fmt: skip
    plans = json.loads((_ROOT / "docs" / "plans.json").read_text(encoding="utf-8"))
    rows = itertools.chain.from_iterable(map(_planned, plans))
    return _with_table(text, "The table of plans", head, rows)


def _planned(plan: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields the rows of a plan, one per phase; the first row has the figures of the plan."""
    command = f"`{plan['config']} --topology {plan['topology']}"
    command += f" --slices {plan['slices']}" * (plan["slices"] > 1)
    command += "".join(f" --set {override}" for override in plan["overrides"]) + "`"
    hours = f"{plan['total_hours']:.1f}"
    dollars = "not known" if plan["dollars"] is None else f"{plan['dollars']:,.0f}"
    for number, phase in enumerate(plan["phases"]):
        yield (
            "" if number else command,
            "" if number else str(plan["devices"]),
            f"{phase['global_batch_size']:,} x {phase['sequence_length']:,}",
            f"{phase['memory_bytes'] / 2**30:.2f}",
            f"{phase['cycles'] / 1e6:.1f}",
            f"{1e3 * phase['compute_seconds']:.1f}",
            f"{1e3 * phase['exposed_seconds']:.1f} ({1e3 * phase['collective_seconds']:.1f})",
            f"{1e3 * phase['step_seconds']:.1f}",
            f"{100 * phase['mfu']:.0f} %",
            "" if number else hours,
            "" if number else dollars,
        )


def main() -> int:
    tpu = _ROOT / "docs" / "tpu.md"
    architecture = _ROOT / "docs" / "architecture.md"
    tables = _ROOT / "docs" / "configuration.md"
    made = {
        _ROOT / "docs" / "data-flow.svg": picture(),
        tables: with_fields(with_options(tables.read_text(encoding="utf-8"))),
        architecture: with_lines(architecture.read_text(encoding="utf-8")),
        tpu: with_plans(tpu.read_text(encoding="utf-8")),
    }
    stale = [p for p, t in made.items() if not p.is_file() or p.read_text(encoding="utf-8") != t]
    if "--check" not in sys.argv[1:]:
        for path in stale:
            path.write_text(made[path], encoding="utf-8")
        return 0
    for path in stale:
        print(f"{path} is not up to date")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
