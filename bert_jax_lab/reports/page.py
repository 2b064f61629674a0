"""The skeleton of an HTML page that is one file: style, data and scripts are inside it.

A page asks nothing of a network. Its policy (Content-Security-Policy) lets the browser load
nothing, and execute only the scripts of this room, by their hashes: a name that comes from a
workdir or a text can do no harm even if it were not escaped.
"""

import base64
import hashlib
import importlib.resources
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

# Every page begins with them: colours and tables, and the switch between light and dark.
_STYLE, _SCRIPT = "page.css", "page.js"
_VENDOR = "vendor/"
# The classes of letters that run from right to left.
_FROM_RIGHT = {"R", "AL"}
# A text inside <script> ends with the first "</script>" or changes its meaning with "<!--". JSON
# may write these characters as escapes; JavaScript before 2019 took the last two for new lines.
_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def render(
    *,
    title: str,
    body: str,
    data: Mapping[str, Any],
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
) -> str:
    """Returns a whole page.

    `title` is text, and escaped here. `body` is HTML that is already safe: made by `table`,
    `chart`, `details`, or with `text` around all that comes from elsewhere. `data` are plain
    values, which the scripts find as `page.data`; they may hold any text, and every number must
    be finite (ValueError otherwise). `scripts` and `styles` are files of this room, in the order
    in which they are put in, after `page.js` and `page.css`; those in `vendor/` bring their
    licence.

    `page.js` gives the scripts one object, `page`: `page.data`; `page.colour(name)`, the present
    value of a CSS variable, for a canvas; `page.onTheme(f)`, which calls f after a
    change between light and dark; and `page.make(tag, attributes, ...children)`, an element.
    """
    style = "\n".join(asset(name) for name in (_STYLE, *styles))
    code = [asset(name) for name in (_SCRIPT, *scripts)]
    for name, content in zip((_SCRIPT, *scripts), code, strict=True):
        if "</script" in content or "<!--" in content:
            raise ValueError(f"{name} cannot stand inside a page: it has </script or <!--")
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src {' '.join(_hash(content) for content in code)}"
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>{text(title)}</title>",
            f"<style>\n{style}\n</style>",
            "</head>",
            "<body>",
            '<header><button type="button" id="theme" hidden>theme</button>',
            f"<h1>{text(title)}</h1></header>",
            f"<main>\n{body}\n</main>",
            f'<script type="application/json" id="data">{in_script(data)}</script>',
            *(f"<script>{content}</script>" for content in code),
            "</body>",
            "</html>",
            "",
        ]
    )


def text(value: object) -> str:
    """Returns a value as HTML: safe between tags and inside a quoted attribute."""
    return escape(str(value), quote=True)


def direction(value: str) -> str:
    """Returns an attribute for text most of whose letters run from right to left: else a mark or a
    number in it would put its parts in the wrong order.
    """
    if value.isascii():
        return ""
    kinds = [unicodedata.bidirectional(character) for character in value]
    is_from_right = sum(kind in _FROM_RIGHT for kind in kinds) > kinds.count("L")
    return ' dir="rtl"' if is_from_right else ""


def isolated(value: str) -> str:
    """Returns text for a place inside of other text. One with letters that run from right to left
    is put into isolating marks: else a number that follows would stand before it.
    """
    kinds = set() if value.isascii() else {unicodedata.bidirectional(letter) for letter in value}
    if not kinds & _FROM_RIGHT:
        return value
    return f"\N{FIRST STRONG ISOLATE}{value}\N{POP DIRECTIONAL ISOLATE}"


def in_script(data: Any) -> str:
    """Returns JSON that may stand inside <script>. Raises ValueError for a number that is not
    finite."""
    compact = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return compact.translate(_IN_SCRIPT)


def asset(name: str) -> str:
    """Returns a file of this room; one in `vendor/` with its licence before it, as a comment."""
    room = importlib.resources.files("bert_jax_lab.reports")
    content = room.joinpath(name).read_text(encoding="utf-8")
    if name.startswith(_VENDOR):
        library = name.removeprefix(_VENDOR).partition(".")[0]
        licence = room.joinpath(f"{_VENDOR}{library}.LICENSE.txt").read_text(encoding="utf-8")
        return f"/*!\n{licence.strip()}\n*/\n{content}"
    return content


def table(columns: Sequence[object], rows: Iterable[Sequence[object]], *, caption: str = "") -> str:
    """Returns an HTML table; the first cell of each row is its heading. None is an empty cell.

    It scrolls inside its own box where the screen is narrow.
    """

    def cells(kind: str, values: Iterable[object]) -> str:
        shown = ["" if value is None else str(value) for value in values]
        end = kind.partition(" ")[0]
        return "".join(f"<{kind}{direction(value)}>{text(value)}</{end}>" for value in shown)

    head = cells('th scope="col"', columns)
    lines = (cells('th scope="row"', row[:1]) + cells("td", row[1:]) for row in rows)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    above = f"<caption>{text(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption or "table")}">'
        f"<table>{above}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def details(summary: str, inner: str) -> str:
    """Returns HTML that one opens. It is open where no script runs: `page.js` closes it."""
    return f"<details open><summary>{text(summary)}</summary>\n{inner}\n</details>"


def chart(identity: str, *, heading: str, label: str, tables: str) -> str:
    """Returns a figure that a script draws into, and the same numbers as tables.

    `identity` is the id of the element to draw into, `label` says in words what the picture shows
    (read aloud, and shown where no script runs), and `tables` are made by `table`.
    """
    return (
        f'<figure class="chart"><h2 id="{text(identity)}-heading">{text(heading)}</h2>\n'
        f'<div id="{text(identity)}" class="drawing" role="img" aria-label="{text(label)}"></div>\n'
        f"<figcaption>{text(label)}</figcaption>\n{details('Table', tables)}</figure>"
    )


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
