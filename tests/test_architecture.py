"""The rules of the packages: imports between modules, effects of imports, sizes of modules."""

import ast
import functools
import graphlib
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bert_jax import registry
from bert_jax.cli.usage import command_parser, options_by_name
from bert_jax.registry import Registry
from tests.paths import ROOT

_PACKAGES = ("bert_jax", "bert_jax_lab")
_MODULES = sorted(
    path.relative_to(ROOT)
    for package in _PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path.parts[-2] not in ("configs", "shipped")
)
_LONGEST = 400  # lines

# A room of the packages -> the rooms it may import: one direction, from text to command line. A
# room is a folder; of the folders inside `data/` each is one. `lab/` stands for `bert_jax_lab/`.
_COMMON = {"config", "config_checks", "config_loader", "errors", "file_lock", "files", "progress"}
_COMMON |= {"registry", "strict_json", "versions"}
_MAY_IMPORT = {
    "errors": set(),
    "progress": {"errors"},
    "__init__": set(),
    "file_lock": {"errors", "progress"},
    "files": {"errors"},
    "versions": set(),
    "worker": set(),
    "strict_json": {"errors"},
    # Its entries are strings: what they name is imported when it is asked for.
    "registry": {"errors"},
    "config": {"errors", "registry"},
    "config_checks": {"config", "errors", "registry"},
    "config_loader": {"config", "config_checks", "errors", "strict_json"},
    # Asked by the functions of configs/.
    "data": {"errors", "worker"},
    "data/language": {"errors", "progress"},
    "data/tokenizer": {"data/language", "errors", "files", "progress", "strict_json"},
    "data/sources": {"data/language", "runtime"}
    | {"errors", "files", "progress", "registry", "strict_json"},
    "data/formats": {"data/sources", "errors"},
    "data/matching": {"data", "data/language", "data/sources", "errors"},
    "data/corpus": {"data", "data/language", "data/matching", "data/sources", "data/tokenizer"}
    | {"config", "errors", "file_lock", "files", "progress", "strict_json", "versions"},
    "data/cluster": {"data/corpus", "data/sources", "errors", "progress", "worker"},
    "data/pretraining": {"data", "data/corpus", "data/tokenizer"}
    | {"config", "errors", "files", "progress", "registry", "strict_json"},
    "data/pairs": {"data", "data/corpus", "data/pretraining", "data/tokenizer", "config", "errors"},
    "data/tasks": {"data", "data/pairs", "data/pretraining", "data/sources", "data/tokenizer"}
    | {"errors", "progress", "strict_json"},
    "model": {"config", "registry"},
    "objectives": {"data/pairs", "data/pretraining", "data/tokenizer", "config", "model"}
    | {"registry", "progress"},
    "update": {"config", "model", "objectives", "registry"},
    "interchange": _COMMON | {"data/tokenizer", "model"},
    "runtime": {"errors", "progress"},
    "workdir": _COMMON
    | {"data/tokenizer", "data/corpus", "model", "update", "interchange", "runtime"},
    "memory": _COMMON | {"model", "update", "runtime", "workdir"},
    "pretrained": _COMMON
    | {"data/tokenizer", "data/corpus", "model", "update", "interchange", "workdir"},
    "training": _COMMON
    | {"data", "data/corpus", "data/pretraining"}
    | {"model", "objectives", "update", "memory", "runtime", "workdir", "pretrained"},
    "inference": _COMMON
    | {"data", "data/matching", "data/sources", "data/tokenizer", "data/tasks"}
    | {"model", "interchange"}
    | {"workdir", "pretrained", "training"},
    "tasks": _COMMON
    | {"data", "data/sources", "data/tokenizer", "data/tasks", "model", "objectives"}
    | {"interchange", "update", "memory", "runtime", "workdir", "pretrained", "training"}
    | {"inference"},
    "api": _COMMON
    | {"data/tokenizer", "data/tasks", "model", "interchange", "pretrained", "inference", "tasks"},
    "lab/reference_curves": _COMMON | {"workdir", "training"},
    "lab/probes": _COMMON
    | {"data/sources", "data/tokenizer", "data/corpus", "data/tasks", "model"}
    | {"pretrained", "training", "inference"},
    "lab/reports": _COMMON | {"workdir", "lab/reference_curves"},
    "lab/planning": _COMMON | {"data/corpus", "data/pretraining", "model", "update", "training"},
    "lab/doctor": _COMMON
    | {"data/corpus", "update", "memory"}
    | {"runtime", "workdir", "pretrained", "training", "lab/planning"},
    "lab/studies": _COMMON
    | {"data/language", "data/tokenizer", "data/corpus", "model", "update", "runtime", "workdir"}
    | {"pretrained", "training", "tasks", "lab/reports"},
    "lab": set(),
}
_CORE = {room for room in _MAY_IMPORT if not room.startswith("lab")}
_MAY_IMPORT["__init__"] = _CORE - {"__init__"}
_MAY_IMPORT["cli"] = _CORE | {"cli"}
_MAY_IMPORT["__main__"] = _CORE | {"cli"}
_MAY_IMPORT["lab/cli"] = _MAY_IMPORT.keys() | {"cli"}
# The entries of core tables that are part of the laboratory: built in where it is installed, and
# the core works without them (tests/test_without_laboratory.py).
_OPTIONAL = {
    Path("bert_jax/registry.py"): ("lab/probes", "lab/reference_curves"),
    Path("bert_jax/cli/usage.py"): ("lab/cli",),
}
_PLACE = re.compile(r"((?:bert_jax|bert_jax_lab)(?:\.\w+)+)(:\w+)*")
_MOST_MODULES = 15
# Where jax may not be: what reads text, and what every command imports.
_WITHOUT_JAX = ("bert_jax/data/", "bert_jax/config", "bert_jax/registry.py", "bert_jax/errors.py")
# A library -> the only places that may import it.
_ONLY_IN = {
    "flax": ("bert_jax/model/",),
    "optax": ("bert_jax/update/",),
    "orbax": ("bert_jax/workdir/checkpoint.py",),
    # Files of a run, and sources of data.
    "gcsfs": ("bert_jax/workdir/storage.py",),
    "fsspec": ("bert_jax/workdir/storage.py", "bert_jax/data/"),
    "etils": ("bert_jax/workdir/storage.py",),
    "filelock": ("bert_jax/file_lock.py",),
    "argparse": ("bert_jax/cli/", "bert_jax_lab/cli/"),
    "msgspec": ("bert_jax/config/", "bert_jax_lab/studies/study.py"),
    "tensorflow": ("bert_jax/data/", "bert_jax/interchange/tf1.py"),
    # The readers of records.
    "csv": ("bert_jax/data/sources/delimited.py",),
    "pyarrow": ("bert_jax/data/sources/arrow.py",),
    "tensorflow_datasets": ("bert_jax/data/sources/tfds.py",),
    "safetensors": ("bert_jax/interchange/safetensors_files.py",),
    "torch": (),
    "apache_beam": ("bert_jax/data/cluster/beam.py", "bert_jax/data/cluster/run.py"),
    "pickle": (),
}
# What a pure module neither imports nor calls.
_IO_MODULES = {"io", "logging", "os", "pathlib", "shutil", "subprocess", "sys", "tempfile"}
_IO_CALLS = {"input", "open", "print"}
_OF_COMMAND_LINE = ("bert_jax/cli/", "bert_jax_lab/cli/", "bert_jax/__main__.py")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


@functools.cache
def _tree(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


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
    package, *rest = name.split(".")
    places = ["lab", *rest] if package == "bert_jax_lab" else rest
    inner, first = "/".join(places[:2]), places[0] if places else ""
    return next((room for room in (inner, first) if room in _MAY_IMPORT), "__init__")


def _room_of(module: Path) -> str:
    return _room(".".join(module.with_suffix("").parts))


def _folder(room: str) -> Path:
    return ROOT / (f"bert_jax_{room}" if room.startswith("lab") else f"bert_jax/{room}")


def test_the_rules_know_every_room():
    assert {_room_of(module) for module in _MODULES} == set(_MAY_IMPORT)


def test_imports_go_one_way():
    found = {
        f"{module} imports {name}"
        for module in _MODULES
        for name in _imports(_tree(module))
        if name.split(".")[0] in _PACKAGES
        and _room(name) not in _MAY_IMPORT[_room_of(module)] | {_room_of(module)}
    }
    assert not found


def _named(tree: ast.AST) -> Iterator[str]:
    """Dotted name of each string "MODULE:NAME" or "MODULE.NAME", such as an entry of a table."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from [node.value.replace(":", ".")] if _PLACE.fullmatch(node.value) else []


def test_strings_that_name_modules_follow_the_rules_of_imports():
    """Entries of tables are strings, "MODULE:NAME", which are imports that `ast` does not show."""
    found = set()
    for module in _MODULES:
        room, allowed = _room_of(module), _OPTIONAL.get(module, ())
        for place in _named(_tree(module)):
            named = _room(place)
            # All rooms read a table: its entries may be in each room of the core.
            is_table = module in _OPTIONAL and named in _CORE | {"cli", *allowed}
            if not (is_table or named in _MAY_IMPORT[room] | {room, *allowed}):
                found.add(f"{module} names {place}")
    assert not found


def test_strings_that_name_modules_resolve():
    """Each string names a module or a package, or something that a module defines or imports."""
    for module in _MODULES:
        for place in _named(_tree(module)):
            path, name = Path(*place.split(".")), place.rpartition(".")[2]
            is_there = (ROOT / path).is_dir() or path.with_suffix(".py") in _MODULES
            owner = path.parent.with_suffix(".py")
            assert is_there or name in _top_level(owner), f"{module} names {place}"


def _top_level(module: Path) -> set[str]:
    found = set()
    for node in _tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for each in targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def test_modules_import_in_no_circle():
    """Counts imports in functions and behind TYPE_CHECKING, and the strings that name modules.

    A table is read by the modules that its entries import, so the strings of a table are no edges.
    """
    names = {".".join(m.with_suffix("").parts).removesuffix(".__init__"): m for m in _MODULES}

    def module_of(name: str) -> str:
        return name if name in names or not name else module_of(name.rpartition(".")[0])

    graph = {}
    for name, module in names.items():
        used = {each for each in _imports(_tree(module)) if each.split(".")[0] in _PACKAGES}
        if module not in _OPTIONAL:
            used |= {*_named(_tree(module))}
        graph[name] = {module_of(each) for each in used} - {name}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_packages_and_registries_are_described():
    """The tables of docs/architecture.md list the imports that are checked, and the registries."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {
        room
        for room in _MAY_IMPORT
        if room not in ("lab", "config") and _folder(room).is_dir()  # open to all
    }
    rooms, seams = (
        text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        for heading in ("Packages", "Registries")
    )
    rows = re.findall(r"^\| `([\w/]+)/` \|.*\| (.*) \|$", rooms, re.MULTILINE)
    assert {room: set(re.findall(r"`([\w/]+)/`", cell)) for room, cell in rows} == {
        room: set() if room in ("cli", "lab/cli") else _MAY_IMPORT[room] & folders
        for room in folders
    }
    tables = {name for name, value in vars(registry).items() if isinstance(value, Registry)}
    assert set(re.findall(r"`([A-Z_]+)`", seams)) == tables


def test_rooms_import_in_no_circle():
    """At most one of two rooms may import the other, directly or through others."""
    reached = {room: set(allowed) for room, allowed in _MAY_IMPORT.items()}
    for _ in reached:
        for others in reached.values():
            others.update(*(reached[other] for other in list(others)))
    assert not [
        room for room, others in reached.items() if room in others - {"cli", "lab/cli", "__main__"}
    ]


def test_a_room_is_small():
    count = Counter(m.parent for m in _MODULES if m.name != "__init__.py")
    assert max(count.values()) <= _MOST_MODULES, count.most_common(1)


def test_a_class_name_exists_once():
    """Private names are free: they are not seen outside their module."""
    places: dict[str, list[str]] = {}
    for module in _MODULES:
        for node in ast.walk(_tree(module)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module.as_posix())
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_libraries_stay_where_they_belong():
    for module in _MODULES:
        used = {name.split(".")[0] for name in _imports(_tree(module))}
        for library in used & _ONLY_IN.keys():
            assert module.as_posix().startswith(_ONLY_IN[library]), f"{module} imports {library}"
        if module.as_posix().startswith(_WITHOUT_JAX):
            assert "jax" not in used, f"{module} imports jax"


def test_the_model_reads_and_prints_nothing():
    for module in _MODULES:
        if not module.as_posix().startswith("bert_jax/model/"):
            continue
        tree = _tree(module)
        assert not {name.split(".")[0] for name in _imports(tree)} & _IO_MODULES, module
        called = {
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not called & _IO_CALLS, module


def test_importing_a_module_does_nothing():
    """Imports, definitions and values; no statement that acts."""
    quiet = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    for module in _MODULES:
        body = _tree(module).body
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        for node in body:
            if isinstance(node, ast.If) and ast.unparse(node.test) in (
                "__name__ == '__main__'",
                "TYPE_CHECKING",
            ):
                continue
            if isinstance(node, ast.Expr) and ".defvjp(" in ast.unparse(node):
                continue  # jax's way to define a function's derivative
            assert isinstance(node, quiet), f"{module}:{node.lineno}: {ast.unparse(node)[:80]}"


def test_a_module_is_read_in_one_sitting():
    lines = {m: len((ROOT / m).read_text(encoding="utf-8").splitlines()) for m in _MODULES}
    assert not {module: count for module, count in lines.items() if count > _LONGEST}


def test_a_module_says_what_it_is_for():
    for module in _MODULES:
        is_empty = not (ROOT / module).read_text(encoding="utf-8").strip()
        assert (is_empty and module.name == "__init__.py") or ast.get_docstring(_tree(module)), (
            module
        )


def test_the_library_names_options_as_arguments():
    """Messages name arguments in back-ticks (`init_from`), and cli/output.py shows them as options.

    No message names an option directly, or an argument that does not exist.
    """
    # `texts` and `rows` are arguments of the Python API only.
    options = {*options_by_name(command_parser()), "texts", "rows"}
    for module in _MODULES:
        # The sentences of fields are Markdown, for the tables of the documentation; a study and its
        # plan consist of command lines.
        described = "bert_jax/config/", "bert_jax/data/corpus/options.py"
        # result.py calls git.
        studies = (f"bert_jax_lab/studies/{name}.py" for name in ("plan", "result", "study"))
        exempt = *_OF_COMMAND_LINE, *described, *studies
        if module.as_posix().startswith(exempt):
            continue
        tree = _tree(module)
        docstrings = [n.body[0] for n in ast.walk(tree) if isinstance(n, _DOCUMENTED) and n.body]
        skipped = {id(node.value) for node in docstrings if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            found = re.findall(r"(?<![\w-])--(?!xla)[a-z][\w-]*", node.value)
            assert not found, f"{module}:{node.lineno}: {found}"
            if id(node) not in skipped:
                unknown = set(re.findall(r"`([a-z_]+)`", node.value)) - options
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
    for verb in ("prepare", "pretrain", "evaluate", "fill-mask", "export", "config"):
        assert f"\n  {verb} " in done.stdout


def test_help_is_instant():
    """By processor time: how long a busy machine lets it wait says nothing about the program."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "bert_jax", "--help"]
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5
