"""The messages that docs/troubleshooting.md quotes are messages of the program."""

import ast
import functools
import re

from tests.paths import ROOT

_PAGE = ROOT / "docs" / "troubleshooting.md"


@functools.cache
def _strings() -> str:
    """Returns all strings of both packages, one per line; a value in a string is three dots."""
    found = []
    for folder in ("bert_jax", "bert_jax_lab"):
        for module in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (p.value if isinstance(p, ast.Constant) else "..." for p in node.values)
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def test_quoted_messages_exist():
    """A quoted message is a code span of several words; its fixed parts are compared."""
    text = re.sub(r"^```.*?^```", "", _PAGE.read_text(encoding="utf-8"), flags=re.S | re.M)
    quoted = [
        span
        for span in re.findall(r"`([^`\n]+)`", text)
        if " " in span and not re.match(r"--|bert-jax |pip |gcloud ", span)
    ]
    assert len(quoted) > 30
    for span in quoted:
        for part in span.split("..."):
            assert part.strip() in _strings(), f"{span}: no message contains {part.strip()!r}"
