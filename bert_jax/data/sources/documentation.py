"""The embedded corpus: documentation that every installation of this project contains.

The topics of Python's `help()`, and the docstrings of the standard library and of the packages that
bert-jax depends on. They are read from source files with `ast`; nothing is imported. A document is
a topic, or the docstrings of one module. The text depends on the installed versions.
"""

import ast
import functools
import importlib.machinery
import inspect
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from bert_jax.errors import UsageError

# The run-time dependencies of this project and their dependencies, independent of extras.
_PACKAGES = (
    "numpy", "scipy", "jax", "flax", "optax", "orbax", "tensorflow", "keras", "h5py", "rich",
    "treescope", "etils", "absl", "requests", "huggingface_hub", "fsspec", "tqdm", "packaging",
    "optree", "psutil", "prometheus_client", "pygments", "click", "typer", "markdown_it",
)  # fmt: skip

# Folders that contain tests, build programs, or vendored packages.
_PASSED_OVER = {
    "test", "tests", "testing", "idle_test", "idlelib", "lib2to3", "ensurepip", "turtledemo",
    "site-packages", "dist-packages", "lib-dynload", "_vendor", "vendor", "vendored",
    "third_party", "pydoc_data", "__pycache__",
}  # fmt: skip
_TEST_FILE = re.compile(r"test_.*|.*_test|conftest|.*_pb2|_nd_image|setup")

_DOCTEST = re.compile(r"(>>>|\.\.\. |In \[\d+\]:|\$ )")
_FENCE = re.compile(r"(```|~~~)")
_DIRECTIVE = re.compile(r"\.\. ?([\w:-]*\w)?::|\.\. |#{1,6} ")
# Directives with a body of prose; the bodies of other directives are skipped.
_PROSE_DIRECTIVES = {"note", "warning", "caution", "tip", "important", "seealso", "versionadded",
                     "versionchanged", "deprecated"}  # fmt: skip
_RULE = re.compile(r"[=\-~^*+#_.`'\"|\s]{3,}")
_TABLE_ROW = re.compile(r"\|.*\||\+[-=+]+\+")
_GAP = re.compile(r"(?<=\S) {3,}(?=\S)")
_BULLET = re.compile(
    r"([-*+•] |\(?(\d{1,2}|[a-z])[.)] |:(?!class|func|meth|mod|attr|obj|ref)\w[^:]*: )"
)
# `x : array_like, optional`, `axis: int`, `Raises:` and similar: a name without a sentence.
_FIELD_LINE = re.compile(
    r"[`*]*\w[\w.`*]*(, [`*]*\w[\w.`*]*)* ?:( .*[^.])?|\w+( \w+)?( \([^)]*\))?:"
)
_FIELD_LEAD = re.compile(r"[`*]*\w[\w.`*]*( \([^)]*\))?: +(?=[A-Z\"(`])")

_ROLE = re.compile(r":[a-z][\w:+-]*:`([^`]*)`")
_LINK_TARGET = re.compile(r"\s*<[^<>\s][^<>]*>$")
_TICKS = re.compile(r"`{1,2}([^`]+)`{1,2}(__?\b)?")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(?=\S)([^*]+?)(?<=\S)\1(?![\w*])")
_MARKDOWN_LINK = re.compile(r"!?\[([^\]\[]*)\]\([^()\s]*\)")
_REFERENCE = re.compile(r"\s*(\[\w{1,12}\]_|\|\w+\||<[/!]?[a-zA-Z][^<>]*>)")

_WORD = re.compile(r"[\"'(]*[A-Za-z][A-Za-z'’-]*[.,;:!?)\"']*|\d{1,4}[.,;:)]*|[-–—&]")
_CODE_SIGNS = re.compile(r"[=<>{}\[\]\\|_@#$^~*/+`]|\w\.\w|\w\(")
_LEGAL = re.compile(
    r"copyright|licen[sc]e[ds]?\b|all rights reserved|warrant(y|ies)|redistribut|permission is",
    re.IGNORECASE,
)


@functools.cache
def documentation() -> tuple[tuple[str, ...], ...]:
    """Returns all documents, about 1.5 million words, in a fixed order; cached per process.

    Repeated paragraphs are dropped first, because docstrings repeat, and held-out text must not
    occur in the training text.

    Raises UsageError if no source files are installed.
    """
    seen: set[str] = set()
    documents = []
    for texts in _texts():
        document = []
        for text in texts:
            for paragraph in prose(text):
                key = " ".join(re.findall(r"\w+", paragraph.casefold()))
                if key not in seen:
                    seen.add(key)
                    document.append(paragraph)
        if document:
            documents.append(tuple(document))
    if not documents:
        raise UsageError(
            "docs: this Python and its packages are installed without source files; "
            "name a text file as `source` instead"
        )
    return tuple(documents)


def _texts() -> Iterator[Iterable[str]]:
    """Yields the raw texts of each document, module by module."""
    library = Path(sysconfig.get_paths()["stdlib"])
    topics = library / "pydoc_data" / "topics.py"
    if topics.is_file():
        for node in _parse(topics).body:
            if isinstance(node, ast.Assign):
                table: dict[str, str] = ast.literal_eval(node.value)
                yield from ([text] for _, text in sorted(table.items()))
    for folder in (library, *_package_folders()):
        for file in sorted(folder.rglob("*.py")):
            inside = file.relative_to(folder)
            if _PASSED_OVER.isdisjoint(inside.parts[:-1]) and not _TEST_FILE.fullmatch(file.stem):
                yield _docstrings(file)


def _package_folders() -> Iterator[Path]:
    for name in _PACKAGES:
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is not None:
            yield from map(Path, spec.submodule_search_locations or ())


def _docstrings(file: Path) -> Iterator[str]:
    """Yields docstrings in the order of the file."""
    pending: list[ast.AST] = [_parse(file)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node, clean=False):
                yield inspect.cleandoc(text)
            pending.extend(reversed(node.body))
        elif isinstance(node, ast.If | ast.Try):
            pending.extend(reversed(node.body))


def _parse(file: Path) -> ast.Module:
    """Returns the syntax tree of a file; an empty tree if this Python cannot parse the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            return ast.Module(body=[], type_ignores=[])


def prose(text: str) -> list[str]:
    """Returns the prose paragraphs of a docstring, one line per paragraph, without markup.

    Skips doctests and their output, code blocks, directives, tables, rules, headings, lines that
    name a parameter and its type (descriptions are kept), licenses, and paragraphs that are mostly
    code.
    """
    return [
        paragraph
        for lines in _paragraphs(text.expandtabs().split("\n"))
        if _is_prose(paragraph := _plain(" ".join(lines)))
    ]


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Yields the lines of each paragraph; a bullet or a change of indentation begins a new
    paragraph.
    """
    paragraph: list[str] = []
    indent = 0
    block: int | None = None  # inside a code block: deeper lines belong to it
    in_doctest = in_fence = False
    for raw in lines:
        line = raw.strip()
        depth = len(raw) - len(raw.lstrip())
        if _FENCE.match(line):
            in_fence = not in_fence
            line = ""
        if not line:
            in_doctest = False
        elif block is not None and depth <= block:
            block = None
        if not line or in_fence or in_doctest or block is not None:
            yield paragraph
            paragraph = []
            continue

        lead = _BULLET.match(line) or _FIELD_LEAD.match(line)
        if lead or not paragraph or depth < indent or (depth > indent and len(paragraph) > 1):
            yield paragraph
            paragraph = []
            indent = depth
        elif depth > indent:
            indent = depth  # the hanging indent of a bullet or of a field's description
        if lead:
            line = line[lead.end() :]

        if _DOCTEST.match(line):
            in_doctest = True
        elif directive := _DIRECTIVE.match(line):
            if directive[1] not in _PROSE_DIRECTIVES and not line.startswith("#"):
                block = depth
        elif _RULE.fullmatch(line):
            paragraph.clear()  # the heading above the underline
        elif not (_FIELD_LINE.fullmatch(line) or _is_table_row(line)):
            if line.endswith("::"):
                block = depth
                line = line[:-1] if line[:-2].strip() else ""
            paragraph.append(line)
            continue
        yield paragraph
        paragraph = []
    yield paragraph


def _is_table_row(line: str) -> bool:
    return _TABLE_ROW.search(line) is not None or ("   " in line and len(_GAP.findall(line)) > 1)


def _plain(text: str) -> str:
    text = _ROLE.sub(lambda match: _LINK_TARGET.sub("", match[1]).lstrip("~!"), text)
    text = _MARKDOWN_LINK.sub(r"\1", text)
    text = _TICKS.sub(lambda match: _LINK_TARGET.sub("", match[1]), text)
    text = _EMPHASIS.sub(r"\2", text)
    text = _REFERENCE.sub("", text)
    return " ".join(text.split())


def _is_prose(paragraph: str) -> bool:
    words = paragraph.split(" ")
    if len(words) < 5 or paragraph[-1] not in ".!?:)\"'" or not re.match(r"[\"'(]?\w", paragraph):
        return False
    if _LEGAL.search(paragraph):
        return False
    language = sum(_WORD.fullmatch(word) is not None for word in words)
    signs = len(_CODE_SIGNS.findall(paragraph))
    return language >= 0.8 * len(words) and signs <= 0.15 * len(words)
