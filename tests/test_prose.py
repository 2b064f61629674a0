"""Prose is standard technical English, and short.

Dialect markers per 10,000 words stay below a ceiling. A marker is a word or phrase that the
documentation of other projects hardly contains (accelerate, levanter, sentence-transformers,
torchtitan and uv: 4 to 6 per 10,000 words). Pages, table cells and the whole documentation have
budgets of words. Code blocks, code spans and URLs are not prose.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_jax.cli.usage import command_parser, verbs_of
from tests.doc_pages import is_generated, pages
from tests.paths import ROOT

_MARKER = re.compile(
    r"\bgo(?:es)? on\b|\bsays?\b|\bstands?\b|\blies?\b|\balone\b|\banew\b|\bafresh\b|, too\b"
    r"|\bwhose\b|\bof which\b|\bof (?:its|your|their|one's) own\b|\bnobody\b|\bsomebody\b"
    r"|\bbeside\b|\bis none\b|\b(?:that|those) of\b|\bbut for\b|\b(?:is|are) no\b",
    re.IGNORECASE,
)
# Pages written by hand. docs/generate.py writes the others from the code.
_PAGES = [page for page in pages() if not is_generated(page)]
# The most words of a page, of a cell of a table, of all pages together, and of the changelog.
_PAGE_WORDS, _CELL_WORDS, _ALL_WORDS, _CHANGELOG_WORDS = 2_000, 15, 36_000, 700
_SOURCES = ("bert_jax", "bert_jax_lab", "configs", "studies")
_MESSAGE_FUNCTIONS = {"note", "note_once", "say", "tell", "table", "print"}


def prose(markdown: str) -> str:
    """Returns Markdown without front matter, code blocks, code spans and URLs."""
    text = re.sub(r"\A---\n.*?^---\n", "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "", text)
    return re.sub(r"\]\([^)]*\)|\b[a-z]+://\S+", "", text)


def words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z][\w'-]*", text)


def rate(text: str) -> float:
    """Returns markers per 10,000 words."""
    return 10_000 * len(_MARKER.findall(" ".join(text.split()))) / len(words(text))


# --- the kinds of prose ---------------------------------------------------------------------------


def _documentation() -> Iterator[str]:
    return (page.read_text(encoding="utf-8") for page in _PAGES)


def _command_help() -> Iterator[str]:
    parser = command_parser()
    for verb in (parser, *verbs_of(parser).values()):
        yield verb.description or ""
        # Without the commands of the examples.
        yield re.sub(r"^  .*$", "", verb.epilog or "", flags=re.MULTILINE)
        yield from (action.help for action in verb._actions if action.help)


def _modules() -> Iterator[tuple[Path, str]]:
    for folder in _SOURCES:
        for module in sorted((ROOT / folder).rglob("*.py")):
            yield module, module.read_text(encoding="utf-8")


def _messages() -> Iterator[str]:
    """Yields the texts of errors, and of calls that print or log."""
    for _, source in _modules():
        for node in ast.walk(ast.parse(source)):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call):
                continue
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if isinstance(node, ast.Raise) or name in _MESSAGE_FUNCTIONS:
                yield from _texts(call)


def _texts(call: ast.Call) -> Iterator[str]:
    """Yields each string among the arguments of a call; a value in a string becomes `X`."""
    inside: set[ast.AST] = set()
    for node in ast.walk(call):
        if isinstance(node, ast.JoinedStr):
            inside |= set(ast.walk(node))
            parts = (
                part.value if isinstance(part, ast.Constant) else "`X`" for part in node.values
            )
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.value


def _docstrings() -> Iterator[str]:
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for _, source in _modules():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, described):
                # Without commands and tables, which are indented.
                text = ast.get_docstring(node) or ""
                yield re.sub(r"^    .*$", "", text, flags=re.MULTILINE)


def _comments() -> Iterator[str]:
    for _, source in _modules():
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.string.lstrip("# ")


# The texts and the largest number of markers per 10,000 words.
_CEILINGS: dict[str, tuple[Callable[[], Iterator[str]], float]] = {
    "documentation": (_documentation, 10),
    "help": (_command_help, 10),
    "messages": (_messages, 20),
    "docstrings": (_docstrings, 20),
    "comments": (_comments, 15),
}


@pytest.mark.parametrize("kind", _CEILINGS)
def test_dialect_markers_stay_below_the_ceiling(kind):
    read, most = _CEILINGS[kind]
    texts = [prose(text) for text in read()]
    pooled = "\n".join(texts)
    worst = sorted(texts, key=lambda text: -len(_MARKER.findall(text)))[:3]
    found = [sorted(set(_MARKER.findall(text)))[:8] for text in worst]
    assert rate(pooled) <= most, f"{kind}: {rate(pooled):.1f} of {most}; most in {found}"


# --- budgets --------------------------------------------------------------------------------------

each_page = pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def _count(page: Path) -> int:
    return len(words(prose(page.read_text(encoding="utf-8"))))


@each_page
def test_a_page_is_read_in_ten_minutes(page):
    assert _count(page) <= (_CHANGELOG_WORDS if page.name == "CHANGELOG.md" else _PAGE_WORDS)


@each_page
def test_cells_of_tables_are_short(page):
    text = re.sub(r"!\[[^]]*\]", "", page.read_text(encoding="utf-8"))
    for line in prose(text).splitlines():
        for cell in re.split(r"(?<!\\)\|", line) if line.startswith("|") else ():
            assert len(words(cell)) <= _CELL_WORDS, cell


def test_the_documentation_is_short():
    counts = {str(page.relative_to(ROOT)): _count(page) for page in _PAGES}
    assert sum(counts.values()) <= _ALL_WORDS, sorted(counts.items(), key=lambda item: -item[1])


def test_the_commands_of_the_readme_are_on_its_first_screen():
    above, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n```bash\n")
    commands = rest.partition("\n```\n")[0]
    assert commands.count("\nbert-jax ") == 4
    assert len(f"{above}\n```bash\n{commands}\n```".splitlines()) <= 30
