"""The documentation agrees with the code: tables, commands, links and names are compared."""

import ast
import dataclasses
import itertools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from bert_jax import config_loader, errors
from bert_jax.cli.usage import command_parser, parse, verbs_of
from bert_jax.config import ModelConfig, TrainConfig
from bert_jax.model import bert, sharding
from bert_jax.objectives.mlm_nsp import MLM_NSP
from tests.doc_pages import front_matter, pages
from tests.paths import ROOT

_ROOT = ROOT
_PACKAGE = _ROOT / "bert_jax"
_SOURCES = [*_PACKAGE.rglob("*.py"), *(_ROOT / "bert_jax_lab").rglob("*.py")]
_VERB_FOLDERS = ("training", "inference", "exchange")
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_EXTRAS = _PROJECT["optional-dependencies"]
_REFERENCE = _ROOT / "docs" / "reference"
_FILES = _REFERENCE / "files.md"
_KINDS = ("tutorial", "guide", "reference", "concept")
_PARSER = command_parser()
_VERBS = verbs_of(_PARSER)
_DOCS = pages()
each_document = pytest.mark.parametrize(
    "document", _DOCS, ids=lambda page: str(page.relative_to(_ROOT))
)


# --- reading Markdown ----------------------------------------------------------------------------


def prose(text: str) -> str:
    """The text without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def blocks(text: str) -> str:
    """The code blocks of the text."""
    return "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))


def spans(text: str) -> list[str]:
    """Returns what stands in back-ticks, outside of blocks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(text))


def section(document: Path, heading: str) -> str:
    """The text from a heading to the next one of its level or above."""
    text = document.read_text(encoding="utf-8")
    level, rest = re.search(rf"^(#+) {re.escape(heading)}$(.*)", text, re.M | re.S).groups()
    return re.split(rf"^#{{1,{len(level)}}} ", rest, flags=re.MULTILINE)[0]


def table(text: str, number: int = 0) -> list[list[str]]:
    """The rows of a table of the text, without its head; cells without back-ticks."""
    found = re.findall(r"(?:^\|.*\n)+", text + "\n", re.MULTILINE)[number]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in found.splitlines()[2:]]
    return [[cell.replace("\\|", "|").replace("`", "").strip() for cell in row] for row in rows]


def anchors(document: Path) -> set[str]:
    """Returns the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(document.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def commands(text: str) -> list[list[str]]:
    """The arguments of every `bert-jax ...` line, continuation lines joined.

    Left out are commands that are shown for their error, and those with an ellipsis.
    """
    found: list[list[str]] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        match = re.match(r"\s*(?:\$ )?(?:python -m bert_jax|bert-jax) (.*)", line)
        if match and re.match(r"[\w-]+: error:", match[1]):
            found.pop()
        elif match and "..." not in line:
            words = shlex.split(match[1], comments=True)
            ends = [i for i, word in enumerate(words) if word in ("|", ">", "2>", "&&", "&", ";")]
            found.append(words[: min(ends, default=len(words))])
    return found


# --- pages ----------------------------------------------------------------------------------------


@each_document
def test_each_page_declares_its_kind(document):
    if document.parent == _ROOT:
        return
    fields = front_matter(document)
    assert fields.get("kind") in _KINDS and fields.keys() <= {"kind", "generated"}
    body = document.read_text(encoding="utf-8").partition("\n---\n")[2]
    assert body.startswith("\n# "), "the title follows the front matter"


@each_document
def test_no_page_names_a_commit(document):
    text = prose(document.read_text(encoding="utf-8"))  # blocks may show fingerprints
    for word in re.findall(r"\b[0-9a-f]{7,40}\b", text):
        assert word.isdigit() or word.isalpha(), f"{document.name}: {word}"


# --- fields ---------------------------------------------------------------------------------------


@each_document
def test_no_field_is_named_that_does_not_exist(document):
    sections = [f.name for f in dataclasses.fields(TrainConfig)]
    tables = (_REFERENCE / "config.md").read_text(encoding="utf-8")
    known = {*re.findall(r"^\| `([a-zN_][\w.]*)` \|", tables, re.MULTILINE)}
    for span in spans(document.read_text(encoding="utf-8")):
        match = re.match(rf"({'|'.join(sections)})\.[a-zN0-9][\w.]*(?=$|=)", span)
        if match and not match[0].endswith((".py", ".json", ".safetensors")):
            path = re.sub(r"\b\d+\b", "N", match[0]).removesuffix(".kind").removesuffix(".N")
            path = re.sub(r"^phases\.(?=[a-z])", "phases.N.", path)  # the only phase
            path = path.replace("phases.N.schedule", "optimizer.schedule")
            is_there = any(f"{each}.".startswith(f"{path}.") for each in known)
            assert is_there, f"{document.name}: `{span}`"


# --- the command line -----------------------------------------------------------------------------


def test_each_verb_is_described_once():
    text = (_REFERENCE / "cli.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### `bert-jax ([\w-]+)`$", text, re.MULTILINE)) == sorted(_VERBS)


_WITH_COMMANDS = [*_DOCS, *sorted((_ROOT / "configs").glob("*.py")), _ROOT / "examples/demo.sh"]


@pytest.mark.parametrize(
    "file", [*_WITH_COMMANDS, None], ids=lambda p: str(p.relative_to(_ROOT)) if p else "--help"
)
def test_every_command_is_understood(file, capsys):
    """Commands in blocks are parsed by the parser, and their configs checked, as if they ran."""
    if file is None:
        text = "\n".join([_PARSER.epilog, *(verb.epilog or "" for verb in _VERBS.values())])
    elif file.suffix == ".md":
        text = blocks(file.read_text(encoding="utf-8"))
    else:
        text = file.read_text(encoding="utf-8")
    for command in commands(text):
        if command[0] in ("VERB", "--help", "--version"):
            continue
        try:
            arguments = parse(_PARSER, command)
        except SystemExit as end:
            if end.code:
                pytest.fail(f"{shlex.join(command)}: {capsys.readouterr().err}")
            continue
        config = getattr(arguments, "config", None)
        if config in config_loader.shipped_names():
            config_loader.load_config(config, arguments.overrides)
        elif config is not None and (_ROOT / config).is_file():
            config_loader.load_config(str(_ROOT / config), arguments.overrides)
        else:
            assert config is None or is_of_the_user(config, file), f"no such config: {config}"
            if hasattr(arguments, "overrides"):
                config_loader.override(TrainConfig(), arguments.overrides)


def is_of_the_user(config: str, document: Path | None) -> bool:
    """Returns whether a command may name a config that the repository does not have.

    It may be a placeholder such as CONFIG, the config of a run, or a file that the page introduces:
    in back-ticks, or as the output of a command.
    """
    if config.isupper() or config.startswith("runs/"):
        return True
    text = "" if document is None else document.read_text(encoding="utf-8")
    return config.endswith((".py", ".json")) and (config in spans(text) or f"> {config}" in text)


def test_defaults_in_help_stand_at_the_end():
    """Tables cut the text there, and a default in mid-sentence would take the rest with it."""
    for name, verb in _VERBS.items():
        for action in verb._actions:
            default = re.search(r"\(default: (.*)$", action.help or "", re.DOTALL)
            assert default is None or not re.search(r"\)[;.,]", default[1]), (name, action.dest)


def test_extras_are_installed_from_the_clone():
    """Nothing is on an index yet: a name of the package would install nothing, or another one."""
    for file in [*_DOCS, *_SOURCES]:
        assert "bert-jax[" not in file.read_text(encoding="utf-8"), file
    for document in _DOCS:
        for extra in re.findall(r"pip install -e '\.\[([^]]*)\]'", document.read_text()):
            assert {*extra.split(",")} <= _EXTRAS.keys(), document.name


def test_messages_name_the_versions_of_the_extras():
    assert errors.install_command("pyarrow", "apache-beam[gcp]") == (
        "pip install 'pyarrow>=20' 'apache-beam[gcp]>=2.70'"
    )
    assert errors.install_command("none-of-ours") == "pip install none-of-ours"
    optional = {re.split(r"[<>=[]", each)[0] for each in itertools.chain(*_EXTRAS.values())}
    by_hand = re.compile(rf"pip install '?({'|'.join(optional)})\b(?!==)")
    for module in _SOURCES:
        for text in texts(module):
            assert not by_hand.search(text), (module, text)


def test_messages_and_help_name_no_file_of_the_clone():
    for module in _SOURCES:
        for text in texts(module):
            assert not re.search(r"docs/[\w/-]+\.md", text), (module, text)
    for verb in (_PARSER, *_VERBS.values()):
        assert "docs/" not in verb.format_help(), verb.prog


def test_variables_of_trackers_are_described():
    text = (_ROOT / "docs" / "guides" / "monitor.md").read_text(encoding="utf-8")
    module = (_PACKAGE / "workdir" / "trackers.py").read_text(encoding="utf-8")
    for variable in re.findall(r'environ\.get\("(\w+)"', module):
        assert f"`{variable}`" in text


@each_document
def test_no_verb_or_option_is_named_that_does_not_exist(document):
    known = {o for verb in _VERBS.values() for o in verb._option_string_actions}
    launcher = (_ROOT / "launch/tpu").read_text(encoding="utf-8").partition("source ")[0]
    known |= set(re.findall(r"--[a-z-]+", launcher))
    for span in spans(document.read_text(encoding="utf-8")):
        if match := re.match(r"bert-jax ([a-z][\w-]*)", span):
            assert match[1] in _VERBS, f"{document.name}: `{span}`"
        # Of other programs only what a span begins with another word is about.
        if span.startswith(("--", "bert-jax ")):
            for option in re.findall(r"(?<!\S)--[a-z][\w-]*(?![\w.-])", span):
                assert option in known | {"--help", "--version"}, f"{document.name}: `{span}`"


def texts(module: Path) -> Iterator[str]:
    """Yields the strings of a module, but for docstrings and the help of options."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


# --- contracts ------------------------------------------------------------------------------------


def test_exit_codes():
    classes = [errors.BertJaxError, *errors.BertJaxError.__subclasses__(), errors.Interrupted]
    rows = table((_REFERENCE / "exit-codes.md").read_text(encoding="utf-8"))
    assert {name: int(code) for code, name, *_ in rows if name} == {
        c.__name__: c.exit_code for c in classes
    }


def test_the_batch():
    rows = table(section(_FILES, "Batch"))
    assert {name: (shape, dtype) for name, shape, dtype, _ in rows} == {
        name: (f"[B, {size}]", dtype.__name__) for name, (size, dtype) in MLM_NSP.fields.items()
    }


def test_the_parameters():
    sizes = {"V": 101, "D": 24, "H": 4, "K": 6, "F": 40, "P": 17, "T": 3, "2": 2}
    model = ModelConfig(
        vocab_size=101,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=17,
        type_vocab_size=3,
    )
    described = {}
    for name, shape in table(section(_FILES, "Parameters")):
        sized = tuple(sizes[letter] for letter in shape.strip("[]").split(", "))
        described |= {name.replace("_N", f"_{n}"): sized for n in range(2)}
    leaves = jax.tree_util.tree_leaves_with_path(bert.abstract_params(model))
    assert described == {".".join(k.key for k in path): leaf.shape for path, leaf in leaves}


def test_the_mesh():
    axes = table(section(_ROOT / "docs/concepts/sharding.md", "The mesh"))
    assert tuple(name for name, *_ in axes) == sharding.AXES


def test_the_corpus_directory(corpus):
    files, manifest = (table(section(_FILES, "Corpus directory"), n) for n in range(2))
    assert [name for name, _ in manifest] == list(json.loads((corpus / "corpus.json").read_bytes()))
    patterns = [name.replace("NNNNN", "[0-9]" * 5) for name, *_ in files]
    described = {path for pattern in patterns for path in corpus.glob(pattern.rstrip("/"))}
    described |= {file for folder in described if folder.is_dir() for file in folder.iterdir()}
    there = {p for p in corpus.rglob("*") if p.is_file()} - {corpus / "corpus.json"}
    assert there <= described


def test_the_work_directory(trained):
    entries, fields, events = (table(section(_FILES, "Work directory"), n) for n in range(3))
    described = {name.rstrip("/") for name, _ in entries}
    there = {path.name for path in trained.iterdir()}
    assert described - there == {
        "metrics.aside.jsonl", "profile", "set_aside", "trainer.json",
        ".trainer.lock",
    }  # fmt: skip
    assert there <= described

    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    seen: dict[str, set[str]] = {"training": set(), "evaluation": set()}
    for row in rows:
        seen["evaluation" if "split" in row else "training"] |= row.keys() - {"step"}
    for kind, names in seen.items():
        assert names == {name for name, where, _ in fields if where in (kind, "both")}

    folders = (_ROOT / "bert_jax", _ROOT / "bert_jax_lab")
    modules = [module for folder in folders for module in folder.rglob("*.py")]
    sources = [module.read_text(encoding="utf-8") for module in modules]
    written = re.findall(r"event\(\s*(?:workdir, )?\"(\w+)\"", "".join(sources))
    assert {name for name, _ in events} == set(written)
    extra = {name: set(re.findall(r"\w+", said)) for name, said in events}
    for line in (trained / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        assert event.keys() - {"event", "time", "seconds"} <= extra[event["event"]]


def test_the_generated_parts_are_up_to_date():
    command = [sys.executable, str(_ROOT / "docs" / "generate.py"), "--check"]
    assert subprocess.run(command).returncode == 0, "run python docs/generate.py"


def test_hours_and_prices_of_recipes_have_one_place():
    """The table of README.md is generated; a copy elsewhere would become wrong."""
    times = [row[2] for row in table(section(_ROOT / "README.md", "Which recipe?"))][1:]
    figures = {figure for time in times for figure in time.split(", ")}
    for file in [*_DOCS, *(_ROOT / "configs").glob("*.py")]:
        text = file.read_text(encoding="utf-8")
        if file.name == "README.md":
            text = text.replace(section(file, "Which recipe?"), "")
        for figure in figures:
            assert not re.search(rf"(?<![\d.]){re.escape(figure)}\b", text), (file.name, figure)


def test_speeds_are_those_of_the_result_files():
    """The figures of README.md and docs/results.md are the ranges of the measured ratios."""
    results, shown = _ROOT / "benchmarks" / "results", r"(\d[\d.]*(?: to [\d.]+)?) times as fast"
    bert, modern = (table(section(results / "gpu.md", name)) for name in ("BERT", "ModernBERT"))
    cpu = table((results / "train-step-cpu.md").read_text(encoding="utf-8"), 1)
    base = next(number for number, row in enumerate(cpu) if row[0].startswith("Base"))
    measured = []
    for ratios in (
        [row[-1] for row in bert if row[1].startswith("transformers")],
        [modern[-1][-1]],
        [row[6] for row in cpu[base:]],
    ):
        ends = dict.fromkeys(f"{end(map(float, ratios)):.1f}" for end in (min, max))
        measured.append(" to ".join(ends))
    readme = " ".join((_ROOT / "README.md").read_text(encoding="utf-8").split())
    assert re.findall(shown, readme) == measured
    speed = section(_ROOT / "docs" / "results.md", "Speed")
    assert re.findall(shown, speed)[: len(measured)] == measured


# --- links and names ------------------------------------------------------------------------------


def links(document: Path) -> list[tuple[str, Path, str]]:
    """Returns the links to files: each as it is written, the file, and the anchor or ""."""
    found = []
    for target in re.findall(r"\]\(([^()\s]+)\)", prose(document.read_text(encoding="utf-8"))):
        name, _, anchor = target.partition("#")
        if not re.match(r"[a-z]+:", target):
            linked = (document.parent / name).resolve() if name else document
            found.append((target, linked, anchor))
    return found


@each_document
def test_links_lead_somewhere(document):
    for target, linked, anchor in links(document):
        assert linked.exists(), f"{document.name}: {target}"
        assert not anchor or anchor in anchors(linked), f"{document.name}: {target}"


def test_what_the_code_refers_to_is_there():
    for module in [*_SOURCES, *(_ROOT / "configs").glob("*.py")]:
        for name, anchor in re.findall(
            r"docs/([\w/-]+\.md)(?:#([\w-]+))?", module.read_text(encoding="utf-8")
        ):
            linked = _ROOT / "docs" / name
            assert linked.exists(), f"{module}: {name}"
            assert not anchor or anchor in anchors(linked), f"{module}: {name}#{anchor}"


@each_document
def test_no_file_or_target_is_named_that_does_not_exist(document):
    text = document.read_text(encoding="utf-8")
    for span in spans(text):
        if re.fullmatch(r"[\w-]+(/[\w.-]+)+\.(py|md|sh)", span):
            found = [(base / span).exists() for base in (_ROOT, _PACKAGE)]
            assert any(found), f"{document.name}: `{span}`"
    targets = re.findall(r"^([a-z-]+):", (_ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for line in [*spans(text), *blocks(text).splitlines()]:
        if match := re.match(r"(?:\$ )?make ([a-z-]+)\b", line.strip()):
            assert match[1] in targets, f"{document.name}: {line}"
