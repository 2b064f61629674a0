"""The rules of the house: who imports whom, what happens on import, how long a module may be."""

import ast
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import bert_jax

_PACKAGE = Path(bert_jax.__file__).parent
_MODULES = sorted(
    p.relative_to(_PACKAGE) for p in _PACKAGE.rglob("*.py") if p.parts[-2] != "configs"
)
_LONGEST = 400  # lines

# A part of the package -> the parts it may import: one direction, from text to command line.
_COMMON = {"config", "errors", "progress", "resolve", "strict_json"}
_MAY_IMPORT = {
    "errors": set(),
    "progress": set(),
    "__init__": set(),
    "config": {"errors"},
    "strict_json": {"errors"},
    "resolve": {"config", "errors", "strict_json"},
    "data": {"config", "errors", "progress", "strict_json"},
    "model": {"config"},
    "interchange": {"config", "errors", "strict_json", "data", "model"},
    "training": _COMMON | {"data", "model", "interchange"},
    "tasks": _COMMON | {"data", "model", "interchange", "training"},
    "commands": _COMMON | {"data", "model", "interchange", "training", "tasks"},
    "__main__": _COMMON
    | {"__init__", "data", "model", "interchange", "training", "tasks", "commands"},
}
# A library -> the only places that may import it.
_ONLY_IN = {
    "jax": ("model/", "interchange/", "training/", "tasks/", "__main__.py"),
    "flax": ("model/", "training/state.py"),
    "optax": ("training/",),
    "orbax": ("training/checkpoint.py",),
    "argparse": ("__main__.py", "commands/"),
    "tensorflow": ("data/", "training/metrics.py", "interchange/tf1.py"),
    "tensorflow_datasets": ("data/",),
    "torch": (),
    "pickle": (),
}
# What a pure module neither imports nor calls.
_IO_MODULES = {"io", "logging", "os", "pathlib", "shutil", "subprocess", "sys", "tempfile"}
_IO_CALLS = {"input", "open", "print"}


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


def _part(name: str) -> str:
    """`bert_jax.data.store.Split` -> `data`; a name of the package itself -> `__init__`."""
    part = name.split(".")[1]
    return part if part in _MAY_IMPORT else "__init__"


def test_the_rules_know_every_part():
    assert {module.parts[0].removesuffix(".py") for module in _MODULES} == set(_MAY_IMPORT)


@pytest.mark.parametrize("module", _MODULES, ids=str)
def test_imports_go_one_way(module):
    own = module.parts[0].removesuffix(".py")
    ours = {_part(name) for name in _imports(_tree(module)) if name.startswith("bert_jax.")}
    assert ours <= _MAY_IMPORT[own] | {own}


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
    def seconds() -> float:
        began = time.perf_counter()
        command = [sys.executable, "-m", "bert_jax", "--help"]
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began

    assert statistics.median(seconds() for _ in range(5)) < 0.5
