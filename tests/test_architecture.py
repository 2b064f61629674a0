"""The rules of the house: who imports whom, what happens on import, how long a module may be."""

import ast
import collections
import functools
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bert_jax
from bert_jax import registry
from bert_jax.__main__ import _options_by_name, _parser
from bert_jax.registry import Registry

_PACKAGE = Path(bert_jax.__file__).parent
_MODULES = sorted(
    p.relative_to(_PACKAGE) for p in _PACKAGE.rglob("*.py") if p.parts[-2] != "configs"
)
_LONGEST = 400  # lines

# A room of the package -> the rooms it may import: one direction, from text to command line. A room
# is a folder; of the folders inside `data/` each is one.
_COMMON = {
    "config",
    "config_checks",
    "config_loader",
    "config_names",
    "config_values",
    "errors",
    "file_lock",
    "files",
    "progress",
    "registry",
    "strict_json",
    "versions",
}
_MAY_IMPORT = {
    "errors": set(),
    "progress": set(),
    "__init__": set(),
    "file_lock": {"errors", "progress"},
    "files": {"errors"},
    "versions": set(),
    "strict_json": {"errors"},
    # Its entries are strings: what they name is imported when it is asked for.
    "registry": {"errors"},
    "config_values": {"errors"},
    "config_names": set(),
    "config": {"config_values", "errors", "registry"},
    "config_phase_checks": {"config", "registry"},
    "config_checks": {"config", "config_phase_checks", "errors", "registry"},
    "config_loader": {"config", "config_checks", "config_names", "errors"}
    | {"progress", "strict_json"},
    # Asked by the functions of configs/.
    "config_width": {"config"},
    "data": set(),
    "data/language": {"errors", "progress"},
    "data/tokenizer": {"data/language", "errors", "progress", "strict_json"},
    "data/corpus": {"data/language", "data/tokenizer"}
    | {"errors", "file_lock", "files", "progress", "registry", "strict_json"},
    "data/formats": {"data/corpus", "errors", "strict_json"},
    "data/pretraining": {"data", "data/corpus", "data/tokenizer"}
    | {"config", "errors", "progress", "registry"},
    "data/tasks": {"data", "data/corpus", "data/formats", "data/tokenizer"}
    | {"errors", "progress", "strict_json"},
    "model": {"config", "registry"},
    "objectives": {"data/pretraining", "data/tokenizer", "config", "model", "registry", "progress"},
    "update": {"config", "model", "objectives", "registry"},
    "interchange": {
        "config",
        "config_checks",
        "data/tokenizer",
        "errors",
        "files",
        "model",
        "progress",
        "registry",
        "strict_json",
    },
    "runtime": {"errors", "progress", "model"},
    "expected": _COMMON,
    "workdir": _COMMON
    | {"expected", "data/tokenizer", "data/corpus", "model", "update", "interchange", "runtime"},
    "pages": _COMMON | {"workdir"},
    "training": _COMMON
    | {"data", "data/corpus", "data/pretraining"}
    | {"expected", "model", "objectives", "update", "runtime", "workdir"},
    "tasks": _COMMON
    | {"data", "data/tokenizer", "data/tasks", "model", "objectives", "interchange", "update"}
    | {"expected", "runtime", "workdir", "training"},
    "probes": _COMMON
    | {"data", "data/tokenizer", "data/corpus", "model", "workdir", "training", "tasks"},
    "planning": _COMMON
    | {"data", "data/tokenizer", "data/corpus", "data/pretraining"}
    | {"model", "update", "training"},
    "doctor": _COMMON
    | {"data/corpus", "data/pretraining", "expected", "model", "update"}
    | {"runtime", "workdir", "training", "planning"},
    "api": _COMMON
    | {"data/language", "data/tokenizer", "data/corpus", "data/pretraining", "data/tasks"}
    | {"model", "interchange", "update", "workdir", "training", "tasks"},
    "studies": _COMMON
    | {"data/tokenizer", "data/corpus", "model", "update", "runtime", "workdir", "api"},
}
_MAY_IMPORT["__init__"] = _MAY_IMPORT.keys() - {"__init__"} | _COMMON
_MAY_IMPORT["cli"] = _MAY_IMPORT.keys() | _COMMON
_MAY_IMPORT["__main__"] = _MAY_IMPORT.keys() | _COMMON
_MOST_MODULES = 15
# A library -> the only places that may import it.
_ONLY_IN = {
    "jax": (
        "model/",
        "objectives/",
        "interchange/",
        "update/",
        "runtime/",
        "workdir/",
        "training/",
        "tasks/",
        "probes/",
        "planning/",
        "doctor/",
        "api/",
        "studies/",
        "cli/",
        "__main__.py",
    ),
    "flax": ("model/",),
    "optax": ("update/",),
    "orbax": ("workdir/checkpoint.py",),
    "argparse": ("__main__.py", "cli/"),
    "tensorflow": ("data/", "interchange/tf1.py"),
    "tensorflow_datasets": ("data/",),
    "torch": (),
    "pickle": (),
}
# What a pure module neither imports nor calls.
_IO_MODULES = {"io", "logging", "os", "pathlib", "shutil", "subprocess", "sys", "tempfile"}
_IO_CALLS = {"input", "open", "print"}


@functools.cache
def _tree(module: Path) -> ast.Module:
    return ast.parse((_PACKAGE / module).read_text(encoding="utf-8"))


def _imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all that is imported anywhere in the module, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _room(name: str) -> str:
    """Returns `data/corpus` for `bert_jax.data.corpus.store.Split`, `__init__` for the package."""
    first, *rest = name.split(".")[1:]
    inner = f"{first}/{rest[0]}" if rest else first
    return next((room for room in (inner, first) if room in _MAY_IMPORT), "__init__")


def _room_of(module: Path) -> str:
    return _room("bert_jax." + ".".join(module.with_suffix("").parts))


def test_the_rules_know_every_room():
    assert {_room_of(module) for module in _MODULES} == set(_MAY_IMPORT)


@pytest.mark.parametrize("module", _MODULES, ids=str)
def test_imports_go_one_way(module):
    own = _room_of(module)
    ours = {_room(name) for name in _imports(_tree(module)) if name.startswith("bert_jax.")}
    assert ours <= _MAY_IMPORT[own] | {own}


def test_the_rooms_and_the_seams_are_described():
    """The tables of docs/architecture.md say what is checked here, and what registry.py has."""
    text = (_PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {room for room in _MAY_IMPORT if (_PACKAGE / room).is_dir()}
    rooms, seams = (
        text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        for heading in ("The rooms", "The seams")
    )
    rows = re.findall(r"^\| `([\w/]+)/` \|.*\| (.*) \|$", rooms, re.MULTILINE)
    assert {room: set(re.findall(r"`([\w/]+)/`", cell)) for room, cell in rows} == {
        room: _MAY_IMPORT[room] & folders if room != "cli" else set() for room in folders
    }
    tables = {name for name, value in vars(registry).items() if isinstance(value, Registry)}
    assert set(re.findall(r"`([A-Z_]+)`", seams)) == tables


def test_rooms_import_in_no_circle():
    """At most one of two rooms may import the other, directly or through others."""
    reached = {room: set(allowed) for room, allowed in _MAY_IMPORT.items()}
    for _ in reached:
        for others in reached.values():
            others.update(*(reached[other] for other in list(others)))
    assert not [room for room, others in reached.items() if room in others - {"cli", "__main__"}]


def test_a_room_is_small():
    count = collections.Counter(m.parent for m in _MODULES if m.name != "__init__.py")
    assert max(count.values()) <= _MOST_MODULES, count.most_common(1)


@pytest.mark.parametrize("module", _MODULES, ids=str)
def test_libraries_stay_where_they_belong(module):
    used = {name.split(".")[0] for name in _imports(_tree(module))}
    for library in used & _ONLY_IN.keys():
        assert module.as_posix().startswith(_ONLY_IN[library]), f"{module} imports {library}"


@pytest.mark.parametrize("module", [m for m in _MODULES if m.parts[0] == "model"], ids=str)
def test_the_model_reads_and_prints_nothing(module):
    tree = _tree(module)
    assert not {name.split(".")[0] for name in _imports(tree)} & _IO_MODULES
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & _IO_CALLS


@pytest.mark.parametrize("module", _MODULES, ids=str)
def test_importing_a_module_does_nothing(module):
    """Imports, definitions and values; no statement that acts."""
    body = _tree(module).body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    quiet = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) in (
            "__name__ == '__main__'",
            "TYPE_CHECKING",
        ):
            continue
        if isinstance(node, ast.Expr) and ".defvjp(" in ast.unparse(node):
            continue  # jax's way to define a function's derivative
        assert isinstance(node, quiet), f"{module}:{node.lineno}: {ast.unparse(node)[:80]}"


@pytest.mark.parametrize("module", _MODULES, ids=str)
def test_a_module_is_read_in_one_sitting(module):
    assert len((_PACKAGE / module).read_text(encoding="utf-8").splitlines()) <= _LONGEST


@pytest.mark.parametrize("module", _MODULES, ids=str)
def test_a_module_says_what_it_is_for(module):
    if module.name == "__init__.py" and not (_PACKAGE / module).read_text().strip():
        return
    assert ast.get_docstring(_tree(module))


# Beginnings that leave the reader to guess the sentence that they are the end of.
_NO_SENTENCE = ("Of ", "What ", "Whether ")
_ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("folder", ["bert_jax", "tests", "benchmarks", "examples", "docs"])
def test_docstrings_begin_with_what_something_is_or_does(folder):
    """A subject or a verb comes first: "Returns the hash of all ...", not "Of all ..."."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    files = sorted((_ROOT / folder).rglob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, documented) else None
            name = getattr(node, "name", "the module")
            assert not (text or "").startswith(_NO_SENTENCE), f"{file}: {name}: {text[:60]}"


@pytest.mark.parametrize(
    "module", [m for m in _MODULES if m.parts[0] not in ("cli", "__main__.py")], ids=str
)
def test_the_library_names_no_option_of_the_command_line(module):
    """Its messages name arguments (`init_from`), which cli/output.py shows as options."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = re.findall(r"(?<![\w-])--(?!xla)[a-z][\w-]*", node.value)
            assert not found, f"{module}:{node.lineno}: {found}"


@functools.cache
def _options() -> set[str]:
    return {*_options_by_name(_parser())}


@pytest.mark.parametrize(
    "module", [m for m in _MODULES if m.parts[0] not in ("cli", "__main__.py")], ids=str
)
def test_what_the_library_names_as_an_argument_is_an_option(module):
    """Back-ticks in a message are for what cli/output.py shows as an option; quotes do the rest."""
    tree = _tree(module)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = [n.body[0] for n in ast.walk(tree) if isinstance(n, documented) and n.body]
    skipped = {id(node.value) for node in docstrings if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
        ):
            unknown = set(re.findall(r"`([a-z_]+)`", node.value)) - _options()
            assert not unknown, f"{module}:{node.lineno}: {unknown}"


def test_the_command_line_imports_nothing_heavy():
    heavy = "flax jax numpy optax orbax rich sentencepiece tensorflow tokenizers transformers"
    code = (
        "import sys, bert_jax.__main__ as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        f"found = set({heavy.split()!r}) & set(sys.modules)\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for verb in ("prepare", "pretrain", "evaluate", "fill-mask", "export", "import", "show"):
        assert f"\n    {verb}" in done.stdout


def test_help_is_instant():
    """By processor time: how long a busy machine lets it wait says nothing about the program."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "bert_jax", "--help"]
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5
