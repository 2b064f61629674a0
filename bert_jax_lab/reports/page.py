"""The skeleton of a self-contained HTML page: style, data and scripts are inside the file.

A page does not use the network. Its policy (Content-Security-Policy) forbids the browser to load
anything, and permits only the scripts of this folder, by their hashes. All text from a workdir is
escaped; the policy is a second line of defense.
"""

import base64
import hashlib
import importlib.resources
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

# Every page begins with these files: colors and tables, and the switch between light and dark.
_STYLE, _SCRIPT = "page.css", "page.js"
_VENDOR = "vendor/"
# A text inside <script> ends with the first "</script>" or changes its meaning with "<!--"; JSON
# may write these characters as escapes.
_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


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
    `chart`, `details`, or with `text` around all external values. `data` are plain values, which
    the scripts read as `page.data`; every number must be finite (ValueError otherwise). `scripts`
    and `styles` are files of this folder, in the order in which they follow `page.js` and
    `page.css`.

    `page.js` gives the scripts one object, `page`: `page.data`; `page.colour(name)`, the current
    value of a CSS variable, for a canvas; `page.onTheme(f)`, which calls f after a change between
    light and dark; and `page.make(tag, attributes, ...children)`, an element.
    """
    style = "\n".join(asset(name) for name in (_STYLE, *styles))
    code = [asset(name) for name in (_SCRIPT, *scripts)]
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src {' '.join(map(_hash, code))}"
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


def in_script(data: Any) -> str:
    """Returns JSON that may be inside <script>. Raises ValueError for a number that is not
    finite.
    """
    compact = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return compact.translate(_IN_SCRIPT)


def asset(name: str) -> str:
    """Returns a file of this folder; a file in `vendor/` is preceded by its license as a
    comment.
    """
    folder = importlib.resources.files("bert_jax_lab.reports")
    content = folder.joinpath(name).read_text(encoding="utf-8")
    if name.startswith(_VENDOR):
        library = name.removeprefix(_VENDOR).partition(".")[0]
        file = folder.joinpath(f"{_VENDOR}{library}.LICENSE.txt")
        return f"/*!\n{file.read_text(encoding='utf-8').strip()}\n*/\n{content}"
    return content


def table(columns: Sequence[object], rows: Iterable[Sequence[object]], *, caption: str = "") -> str:
    """Returns an HTML table; the first cell of each row is its heading. None is an empty cell.

    On a narrow screen the table scrolls inside its box.
    """

    def cells(kind: str, values: Iterable[object]) -> str:
        shown = ["" if value is None else str(value) for value in values]
        end = kind.partition(" ")[0]
        return "".join(f'<{kind} dir="auto">{text(value)}</{end}>' for value in shown)

    head = cells('th scope="col"', columns)
    lines = (cells('th scope="row"', row[:1]) + cells("td", row[1:]) for row in rows)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    above = f"<caption>{text(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption or "table")}">'
        f"<table>{above}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def details(summary: str, inner: str) -> str:
    """Returns HTML that a reader can open. Without scripts it is open: `page.js` closes it."""
    return f"<details open><summary>{text(summary)}</summary>\n{inner}\n</details>"


def chart(identity: str, *, heading: str, tables: str) -> str:
    """Returns a figure that a script draws into, and the same numbers as tables.

    `identity` is the id of the element to draw into, and `tables` are made by `table`.
    """
    label = f"{heading}: the table has the numbers"
    return (
        f'<figure class="chart"><h2 id="{text(identity)}-heading">{text(heading)}</h2>\n'
        f'<div id="{text(identity)}" class="drawing" role="img" aria-label="{text(label)}"></div>\n'
        f"{details('Table', tables)}</figure>"
    )


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
