"""Draws data-flow.svg: the stages that data go through, in rows from top to bottom.

The registries and their fields come from bert_jax/registry.py. The text of a stage is the first
sentence of the docstring of its module.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from bert_jax import registry

_PACKAGE = Path(__file__).parents[1] / "bert_jax"
_TITLE = 16  # letters


def _purpose(module: Path) -> str:
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    text = text.split("\n\n")[0].replace("\n", " ")
    sentence = re.split(r"(?<=[.;])(?<! al\.)\s", text, maxsplit=1)[0]
    # The text before a colon is enough, unless it is only a title.
    head = sentence.partition(": ")[0]
    return (head if len(head) > _TITLE else sentence).rstrip(".:;")


class Stage(NamedTuple):
    """One box: a form of the data, the module that makes it, and the registry that extends it."""

    title: str
    module: str
    # The registry (registry.py) of the implementations; a stage without one has a note.
    table: str = ""
    note: str = ""


# Each row is read from left to right, and the rows from top to bottom.
_FROM_TEXT = (
    Stage("text", "data/sources/read.py", "FORMATS"),
    Stage("documents", "data/corpus/decide.py", note="without duplicates"),
    Stage("sentences, ids", "data/corpus/encode.py", note="from data/tokenizer"),
    Stage("corpus directory", "data/corpus/store.py", note="NumPy arrays, checksums"),
)
_OF_A_CORPUS = (
    Stage("sequences", "data/pretraining/sentence_pairs.py", "SEQUENCE_FORMATS"),
    Stage("masks", "data/pretraining/masking.py", "MASKINGS"),
    Stage("batch", "data/pretraining/pipeline.py", "OBJECTIVES"),
)
_OF_A_TASK = (
    Stage("a task's files", "tasks/task_data.py", "TASKS"),
    Stage("labeled examples", "tasks/task.py", "TASK_KINDS"),
    Stage("batch", "data/tasks/packing.py", note="packed sequences"),
)
# Both kinds of batch become device arrays.
_TO_DEVICES = Stage("device arrays", "training/device_feed.py", note="sharded over the mesh")
_IN_A_STEP = (
    (
        Stage("embeddings", "model/layers.py", "POSITIONS"),
        Stage("blocks", "model/encoder.py", "ATTENTION"),
        Stage("outputs", "model/bert.py", "PARTS"),
    ),
    (
        Stage("sums", "objectives/objective.py", "OBJECTIVES"),
        Stage("loss", "objectives/objective.py", note="ratio of global sums"),
        Stage("direction", "update/optimizers.py", "OPTIMIZERS"),
        Stage("new state", "update/step.py", "SCHEDULES"),
    ),
    (
        Stage("checkpoint", "workdir/checkpoint.py", note="verified, to resume from"),
        Stage("parameters", "pretrained/load.py", note="for evaluate, finetune, embed, ..."),
        Stage("export", "interchange/huggingface.py", "FAMILIES"),
    ),
)
_WIDTH, _MARGIN, _GAP, _PAD = 960, 24, 26, 12
_BOX, _LABEL, _BETWEEN = 78, 22, 34
_ROW = _LABEL + _BOX + _PAD
_TOP = 62
_DESCRIPTION = (
    "Boxes from top to bottom. Text becomes documents, sentences and token ids, and a corpus "
    "directory. The corpus or the files of a task become sequences and batches, and batches become "
    "device arrays. The model computes embeddings, blocks and outputs; the update computes sums, "
    "the loss, the direction of the optimizer and the new state. The results are a checkpoint, its "
    "parameters and an export. A blue label names the registry that extends a stage, and the field "
    "that chooses an implementation."
)
_STYLE = """
    text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
    .title { font-size: 15px; font-weight: 600; fill: #1f2328; }
    .module { font-size: 11px; font-family: ui-monospace, Menlo, Consolas, monospace; }
    .module, .note, .package { fill: #59636e; }
    .note, .table { font-size: 11.5px; }
    .package { font-size: 12px; font-weight: 600; }
    .table { fill: #0a3069; }
    .arrow { fill: none; stroke: #59636e; stroke-width: 1.6; marker-end: url(#head); }
"""


class Table(NamedTuple):
    """One registry: the field that chooses from it, and its built-in names."""

    field: str
    names: tuple[str, ...]


def tables() -> dict[str, Table]:
    """Returns the registries by name."""
    return {
        name: Table(found._field, tuple(found._builtin))
        for name, found in vars(registry).items()
        if isinstance(found, registry.Registry)
    }


class Box(NamedTuple):
    """A stage and its place in the picture."""

    stage: Stage
    x: float
    y: float
    width: float
    height: float = _BOX

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def package(self) -> str:
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
        *(line for row in (*rows, [to_devices]) for line in _frames(row)),
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
    text = "a registry (registry.py): your own implementation can replace the built-in one"
    yield _text(_MARGIN + 188, 32, text, "note", anchor="start")


def _frames(row: list[Box]) -> Iterator[str]:
    """Yields a frame with the name of the package around the neighbors of a row that share it."""
    for package, found in itertools.groupby(row, key=lambda box: box.package):
        first, *others = found
        last = others[-1] if others else first
        x, width = first.x - 8, last.x + last.width - first.x + 16
        frame = (x, first.y - _LABEL, width, first.height + _LABEL + 10)
        yield _rectangle(*frame, "#f6f8fa", "#d1d9e0", radius=8)
        yield _text(first.x, first.y - 7, f"{package}/", "package", anchor="start")


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
    """Returns the path from the end of a row to the start of the next row."""
    between = b.y - _LABEL - (_BETWEEN - 10 + _PAD) / 2
    # Right of the middle, where there is no package name.
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
