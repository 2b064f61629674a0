"""Writes the parts of the documentation that come from the code.

    python docs/generate.py          # writes them
    python docs/generate.py --check  # exit code 1 if one is not up to date

- docs/reference/cli.md: the verbs and their options (bert_jax/cli/, bert_jax_lab/cli/)
- docs/reference/config.md: the fields of a config and the options of each kind (bert_jax/config/)
- docs/reference/recipes.md: the configs in configs/
- docs/reference/exit-codes.md: the errors in bert_jax/errors.py
- docs/reference/api.md: the names that `import bert_jax` offers, with their docstrings
- docs/data-flow.svg: the picture of the stages (docs/picture.py)
- benchmarks/results/tpu-plans.md: the table of docs/plans.json (docs/take_plans.py)

It also checks the calls that docs/architecture.md lists.
"""

import argparse
import ast
import dataclasses
import functools
import inspect
import itertools
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import picture

import bert_jax
from bert_jax import __main__ as command
from bert_jax import config_loader, errors
from bert_jax.cli import options, usage
from bert_jax.config import TrainConfig
from bert_jax.config.fields import Kind, OptionField, choices_of, fields_of, is_kind, is_section
from bert_jax.config.resume import is_saved
from bert_jax.model import bert
from bert_jax.registry import HOOKS, OBJECTIVES, Registry
from bert_jax.runtime import watchdog
from bert_jax.update.chips import PEAK_BF16
from bert_jax.update.flops import train_flops

_ROOT = Path(__file__).parents[1]
_PACKAGE = _ROOT / "bert_jax"
_REFERENCE = _ROOT / "docs" / "reference"
_FRONT_MATTER = "---\nkind: reference\ngenerated: docs/generate.py\n---\n\n"


def page(*parts: str) -> str:
    """Returns a generated page. `parts` are paragraphs, tables and headings."""
    return _FRONT_MATTER + "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def table(head: Iterable[str], cells: Iterable[Iterable[str]]) -> str:
    """Returns a table in Markdown."""
    rows = [f"| {' | '.join(head)} |"]
    rows.append(re.sub(r"[^|]+", "---", rows[0]))
    for row in cells:
        joined = " | ".join(cell.replace("|", "\\|") for cell in row)
        rows.append(f"| {joined} |".replace("|  |", "| |"))
    return "\n".join(rows)


def _summary(docstring: str | None) -> str:
    """Returns the first sentence of a docstring, in one line."""
    text = " ".join((docstring or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.)(?<! al\.)(?<!e\.g\.)(?<!i\.e\.)\s(?=[A-Z`])", text, maxsplit=1)[0]


# --- the command line -----------------------------------------------------------------------------

_CLI = """\
`bert-jax VERB` and `python -m bert_jax VERB` are the same command. `bert-jax VERB --help` prints
the options below. Results go to stdout; progress and errors go to stderr. [Exit
codes](exit-codes.md) are the same for all verbs.

- CONFIG is the name of a [recipe](recipes.md), a `.py` file that defines `config()`, or a
  `.json` file ([configure a run](../guides/configure.md)).
- CHECKPOINT is a workdir (its newest step), `WORKDIR@best`, one step
  (`WORKDIR/checkpoints/STEP`), a Hugging Face directory, or a TF1 checkpoint (its directory, or
  a prefix such as `DIR/bert_model.ckpt`).
- A workdir is a directory or `gs://BUCKET/PATH`."""
_OPTIONS = ("option", "default", "meaning")


def cli() -> str:
    """Returns reference/cli.md."""
    parser = usage.command_parser()
    verbs = usage.verbs_of(parser)
    parts = ["# Command line", _CLI, "## Options of every verb"]
    parts.append(table(_OPTIONS, _rows(options.Verb, inherited=True)))
    for title, names in groups():
        parts.append(f"## {title}")
        for name in names:
            verb = verbs[name]
            parts += [f"### `bert-jax {name}`", *_paragraphs(verb.description or "")]
            parts += _paragraphs(verb.epilog or "")
            parts.append(table(_OPTIONS, _rows(usage.options_of(name))))
    return page(*parts)


def groups() -> list[tuple[str, list[str]]]:
    """Returns the verbs in their groups, as the help of the command lists them."""
    return [(title, [*names]) for title, names in usage.GROUPS.items() if names]


def _paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of a help text; a paragraph with commands becomes a block of code."""
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        if not any(line.startswith("  ") for line in lines):
            yield _marked(" ".join(paragraph.split()))
            continue
        lines = [line for line in lines if line.strip() not in ("example:", "examples:")]
        code = [line[2:] if line.startswith("  ") else f"# {line}" for line in lines]
        yield "\n".join(["```bash", *code, "```"])


def _rows(declared: type, *, inherited: bool = False) -> Iterator[tuple[str, ...]]:
    of_all = {field.name for field in dataclasses.fields(options.Verb)}
    for option in options.described(declared):
        if inherited or option.name not in of_all:
            yield f"`{_name(option)}`", _default(option), _meaning(option)


def _name(option: options.Option) -> str:
    value = option.keywords.get("metavar", "")
    if "choices" in option.keywords:
        value = "|".join(option.keywords["choices"])
    if option.flag is None:
        return value if "metavar" in option.keywords else option.name.upper()
    if option.keywords.get("action") is argparse.BooleanOptionalAction:
        return f"{option.flag}`, `{option.flag.replace('--', '--no-', 1)}"
    return f"{option.flag} {value}".strip()


def _default(option: options.Option) -> str:
    keywords = option.keywords
    if keywords.get("required") or not (option.flag or "default" in keywords):
        return "required"
    is_value = re.fullmatch(r"[\w.-]+", option.default) is not None
    return f"`{option.default}`" if is_value else _marked(option.default)


def _meaning(option: options.Option) -> str:
    text = _marked(option.text)
    if option.flag is None and "choices" in option.keywords:
        text += f": {', '.join(f'`{choice}`' for choice in option.keywords['choices'])}"
    return f"{text[0].upper()}{text[1:]}" + "." * (not text.endswith("."))


def _marked(text: str) -> str:
    """Returns the text with each option in back-ticks."""
    parts = re.split(r"(`[^`]*`)", text)
    mark = functools.partial(re.sub, r"(?<![\w-])--[a-z][\w-]*", r"`\g<0>`")
    return "".join(part if part.startswith("`") else mark(part) for part in parts)


# --- the fields of a config -----------------------------------------------------------------------

_CONFIG = """\
A run is one value, a `TrainConfig` (`bert_jax/config/`), which is checked before anything starts.
[Configure a run](../guides/configure.md) shows how to set fields. `bert-jax config fields CONFIG`
prints the fields of your config with their allowed values.

The column *resume* tells whether a resumed run accepts another value: `free` (the field changes no
result beyond rounding), `allow` (with `--allow-change FIELD`), or `fixed` (the saved arrays depend
on the field). You can register further implementations, such as an optimizer or an objective, in a
file of your own ([extend bert-jax](../guides/extend.md))."""
_FIELDS = ("field", "default", "meaning", "resume")


class Documented(NamedTuple):
    """An option, and the kinds that have it: none for all of them."""

    field: OptionField
    kinds: tuple[str, ...] = ()


def config() -> str:
    """Returns reference/config.md."""
    sections: dict[str, list[str]] = {}
    for path in documented():
        section = path.partition(".")[0]
        inside = any(each.startswith(f"{section}.") for each in documented())
        sections.setdefault(section if inside and section != "hooks" else "", []).append(path)
    parts = ["# Config fields", _CONFIG]
    for name, paths in sections.items():
        about = fields_of(TrainConfig)[name].item if name else TrainConfig
        about = about.of_kind(about.default_kind).__mro__[1] if is_kind(about) else about
        parts += [f"## `{name}`" if name else "## The run", _first(about)]
        parts.append(table(_FIELDS, map(_described, paths)))
        for path in paths:
            parts += _values(path)
    return page(*parts)


def _first(described: Any) -> str:
    """Returns the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(described) or "").partition("\n\n")[0].split())


@functools.cache
def documented() -> dict[str, Documented]:
    """Returns the options of a config and of all built-in kinds, by path; N stands for a number."""
    return dict(_options_of(TrainConfig, ""))


def _options_of(cls: Any, prefix: str) -> Iterator[tuple[str, Documented]]:
    for name, field in fields_of(cls).items():
        path, number = f"{prefix}{name}", "" if field.item is field.annotation else ".N"
        if is_kind(field.item):
            yield f"{path}.kind" if path == "optimizer" else path, Documented(field)
            if prefix != "phases.N.":  # they are those of the optimizer
                yield from _options_of_kinds(field.item, f"{path}{number}.")
        elif is_section(field.item):
            yield from _options_of(field.item, f"{path}{number}.")
        else:
            yield path, Documented(field)


def _options_of_kinds(base: Any, prefix: str) -> Iterator[tuple[str, Documented]]:
    yield from _options_of(base, prefix)
    kinds: dict[str, list[str]] = {}
    found: dict[str, OptionField] = {}
    for kind in base.table.names():
        for name, field in fields_of(base.of_kind(kind)).items():
            if base.table.is_builtin(kind) and name not in fields_of(base):
                kinds.setdefault(name, []).append(kind)
                found.setdefault(name, field)
    for name, field in found.items():
        yield f"{prefix}{name}", Documented(field, tuple(kinds[name]))


def _described(path: str) -> tuple[str, str, str, str]:
    field, kinds = documented()[path]
    assert field.doc.endswith("."), path
    doc, default = field.doc, field.default
    if (registry := field.choices) is not None:
        names = [name for name in registry.names() if registry.is_builtin(name)]
        if any(f"`{name}`" not in doc for name in names):
            doc += f" Built-in: {', '.join(f'`{name}`' for name in names)}."
    elif choices := choices_of(field.item):
        named = [choice for choice in choices if f"`{choice}`" not in doc]
        label = "Values" if len(named) == len(choices) else "Other values"
        doc += f" {label}: {', '.join(f'`{choice}`' for choice in named)}." if named else ""
    if kinds:
        doc += f" Only for {', '.join(f'`{kind}`' for kind in kinds)}."
    default = default.kind if isinstance(default, Kind) else default
    shown = default if isinstance(default, str) else json.dumps(default)
    return f"`{path}`", f"`{shown}`" if shown else "", doc, _on_resume(field, path)


def _values(path: str) -> Iterator[str]:
    """Yields a table of the values of a field, where a class with a docstring is behind each."""
    field = documented()[path].field
    registry = field.choices
    if registry is None or path.startswith("phases."):
        return
    rows = []
    for name in filter(registry.is_builtin, registry.names()):
        entry = registry[name]
        if is_kind(field.item) and registry is not HOOKS:
            entry = field.item.of_kind(name)
        if not inspect.isclass(entry):
            return
        rows.append((f"`{name}`", _summary(inspect.getdoc(entry))))
    if len(rows) > 1:
        yield f"### Values of `{path}`"
        yield table(("value", "meaning"), rows)


def _on_resume(field: OptionField, path: str) -> str:
    if field.free:
        return "free"
    return "fixed" if is_saved(path) else "allow"


# --- the recipes ----------------------------------------------------------------------------------

_RECIPES = """\
A recipe is a config in `configs/`. `bert-jax config list` lists the recipes, and
`bert-jax config show RECIPE` prints all fields of one.

[Recipes](../guides/recipes.md) explains which recipe to choose, and
[estimate TPU cost](../guides/estimate-tpu-cost.md) how long a run takes. *Batch x length* counts
the sequences of one update and the tokens of one sequence, for each phase with its number of
steps."""


def recipes() -> str:
    """Returns reference/recipes.md."""
    head = ("recipe", "summary", "parameters with heads", "layers x width, heads", "vocabulary",
            "batch x length, steps", "learning rate, warmup", "dtype")  # fmt: skip
    rows = table(head, map(_recipe, config_loader.shipped_names()))
    return page("# Recipes", _RECIPES, rows)


def _recipe(name: str) -> tuple[str, ...]:
    config = config_loader.load_config(name)
    source = (config_loader.config_directory() / f"{name}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    summary = " ".join(docstring.partition("\n\n")[0].split())
    model, optimizer = config.model, config.optimizer
    phases = []
    # A batch that grows is one entry.
    for length, same in itertools.groupby(config.phases, lambda phase: phase.sequence_length):
        each = list(same)
        rows = list(dict.fromkeys(phase.global_batch_size for phase in each))
        if len(rows) < len(each):
            phases += [f"{p.global_batch_size} x {length}, {p.steps:,}" for p in each]
        else:
            steps = sum(phase.steps for phase in each)
            ends = " to ".join(str(size) for size in dict.fromkeys((rows[0], rows[-1])))
            phases.append(f"{ends} x {length}, {steps:,}")
    parameters = bert.parameter_count(bert.abstract_params(model, config.head))
    return (
        f"`{name}`",
        summary,
        f"{parameters:,}",
        f"{model.num_hidden_layers} x {model.hidden_size}, {model.num_attention_heads}",
        f"{model.vocab_size:,}",
        "; ".join(phases),
        f"{optimizer.learning_rate:g}, {optimizer.warmup_steps:,}",
        config.compute.dtype,
    )


# --- the exit codes -------------------------------------------------------------------------------

_EXIT_CODES = """\
An error that you can fix is one line on stderr, `bert-jax VERB: error: ...`, which names the
file, field or value and the fix.

After the codes marked *yes*, the same command resumes from the last checkpoint, and a supervisor
can restart it without a person, as `launch/worker.sh` does. After codes 2 to 8, a restart would
fail with the same error. The error behind 1 may be transient or may occur again, so
`launch/worker.sh` restarts it a limited number of times. After 130 and 141, the same command
resumes a run, but 130 is the decision of a person."""
_OTHER_CODES = {
    0: "The command succeeded.",
    command._PIPE_CLOSED: "The reader of the output closed the pipe, as `head` does, or the "
    "terminal is gone. A training run continues to its end and is saved.",
    134: "Another process of the run was lost, and JAX ended this one.",
    137: "The process was killed (SIGKILL), for example because the host had no free memory.",
    143: "SIGTERM before bert-jax had started.",
    watchdog.HANG: "A process made no progress for `deadline_seconds`.",
}


def exit_codes() -> str:
    """Returns reference/exit-codes.md."""
    kinds = [errors.BertJaxError, *errors.BertJaxError.__subclasses__(), errors.Interrupted]
    rows = {code: ("", text) for code, text in _OTHER_CODES.items()}
    rows |= {kind.exit_code: (f"`{kind.__name__}`", _first(kind)) for kind in kinds}
    rows[1] = (
        f"`{errors.BertJaxError.__name__}`",
        "An unexpected error, with a traceback. An operation that fails because another process "
        "was lost also ends with this code.",
    )
    restarts = {0: ""} | _restarts()
    cells = (
        (f"{code}", name, text, restarts.get(code, "no"))
        for code, (name, text) in sorted(rows.items())
    )
    head = ("code", "error", "meaning", "restart automatically")
    return page("# Exit codes", _EXIT_CODES, table(head, cells))


def _restarts() -> dict[int, str]:
    """Returns how often launch/worker.sh restarts the trainer after each exit code."""
    script = (_ROOT / "launch" / "worker.sh").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^RESTART='([\d ]+)", script, re.MULTILINE)
    (crashes,) = re.findall(r"^CRASHES=(\d+)", script, re.MULTILINE)
    return {int(code): "yes" for code in listed.split()} | {1: f"at most {crashes} times"}


# --- the Python API -------------------------------------------------------------------------------

_API = """\
`import bert_jax` offers these names; each is imported when it is first used. [Use bert-jax from
Python](../guides/python.md) shows examples. Errors are `bert_jax.BertJaxError` and its
subclasses, with the [exit codes](exit-codes.md) of the command line. The config classes are
described in [config fields](config.md)."""


def api() -> str:
    """Returns reference/api.md."""
    names = {name: getattr(bert_jax, name) for name in bert_jax.__all__}
    functions = {n: found for n, found in names.items() if inspect.isfunction(found)}
    classes = {n: found for n, found in names.items() if inspect.isclass(found)}
    configs = {n: c for n, c in classes.items() if c.__module__.startswith("bert_jax.config")}
    problems = {n: c for n, c in classes.items() if issubclass(c, Exception)}
    parts = ["# Python API", _API, "## Functions"]
    for name, function in functions.items():
        parts += [f"### `{name}`", _signature(function), _prose(function)]
    parts.append("## Classes")
    for name in sorted(classes.keys() - configs.keys() - problems.keys()):
        parts += _class(name, classes[name])
    parts += ["## Config classes", table(("class", "meaning"), map(_one_line, configs.values()))]
    parts += ["## Errors", table(("class", "meaning"), map(_one_line, problems.values()))]
    registries = (
        (f"`{name}`", f"`{found._field}`", ", ".join(f"`{entry}`" for entry in found.names()))
        for name, found in names.items()
        if isinstance(found, Registry)
    )
    parts += ["## Registries", '`NAME.register("mine", ENTRY)` adds an entry.']
    parts.append(table(("registry", "chosen by", "built-in entries"), registries))
    return page(*parts)


def _one_line(cls: type) -> tuple[str, str]:
    return f"`{cls.__name__}`", _summary(inspect.getdoc(cls))


def _class(name: str, cls: type) -> Iterator[str]:
    yield f"### `{name}`"
    source = textwrap.dedent(inspect.getsource(cls))
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    if fields := [each for each in node.body if isinstance(each, ast.AnnAssign)]:
        lines = source.splitlines()[fields[0].lineno - 1 : fields[-1].end_lineno]
        yield "\n".join(["```python", *textwrap.dedent("\n".join(lines)).splitlines(), "```"])
    yield _prose(cls)
    attributes = []
    for method, found in vars(cls).items():
        if method.startswith("_"):
            continue
        if isinstance(found, property):
            attributes.append((f"`{method}`", _first(found)))
        elif inspect.isfunction(found):
            yield f"#### `{name}.{method}`"
            yield _signature(found)
            yield _prose(found)
    if attributes:
        yield f"#### Attributes of `{name}`"
        yield table(("attribute", "meaning"), attributes)


def _signature(function: Any) -> str:
    """Returns the signature as the source has it, one argument per line."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef)
    arguments = node.args
    shown = [ast.unparse(ast.arguments([], [each], None, [], [], None, [])) for each in
             [*arguments.posonlyargs, *arguments.args] if each.arg != "self"]  # fmt: skip
    defaults = [ast.unparse(each) for each in arguments.defaults]
    for at, default in zip(range(-len(defaults), 0), defaults, strict=True):
        shown[at] += f" = {default}"
    if arguments.vararg or arguments.kwonlyargs:
        shown.append(f"*{arguments.vararg.arg if arguments.vararg else ''}")
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        text = ast.unparse(ast.arguments([], [each], None, [], [], None, []))
        shown.append(f"{text} = {ast.unparse(default)}" if default is not None else text)
    if arguments.kwarg:
        shown.append(f"**{arguments.kwarg.arg}")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    line = f"{node.name}({', '.join(shown)}){returns}"
    if len(line) > 100:
        inner = "\n".join(f"    {each}," for each in shown)
        line = f"{node.name}(\n{inner}\n){returns}"
    return f"```python\n{line}\n```"


def _prose(found: Any) -> str:
    """Returns a docstring with one line per paragraph; indented lines become a block of code."""
    parts = []
    for paragraph in (inspect.getdoc(found) or "").split("\n\n"):
        if paragraph.startswith("    "):
            parts.append(f"```\n{textwrap.dedent(paragraph)}\n```")
        else:
            parts.append(" ".join(paragraph.split()))
    return "\n\n".join(parts)


# --- the calls from the command line to the step --------------------------------------------------

_MOST_LINES = 300


def check_calls(text: str) -> None:
    """Checks the numbered calls in architecture.md: rows with `FUNCTION` in `FILE`.

    Raises ValueError where a function does not name the next one, or all together are too long.
    """
    found = re.findall(r"^\| \d \| `(\w+)` in `([\w/]+\.py)` \|", text, re.MULTILINE)
    bodies = [_body(_PACKAGE / module, name) for name, module in found]
    for body, (callee, _) in zip(bodies, found[1:], strict=False):
        inside = [node for statement in body for node in ast.walk(statement)]
        named = {getattr(node, "id", getattr(node, "attr", None)) for node in inside}
        if callee not in named:
            raise ValueError(f"architecture.md: the function before {callee} does not call it")
    lines = sum((body[-1].end_lineno or 0) - body[0].lineno + 1 for body in bodies)
    if lines > _MOST_LINES or not found:
        raise ValueError(f"from main to the step: {lines} lines, more than {_MOST_LINES}, or none")


def _body(module: Path, name: str) -> list[ast.stmt]:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    (found,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    return found.body[1:] if ast.get_docstring(found) else found.body


# --- the table of plans ---------------------------------------------------------------------------


def with_plans(text: str) -> str:
    """Returns tpu-plans.md with the table of plans.json."""
    head = ("`bert-jax plan`", "devices", "rows x length", "memory, GiB per device",
            "M cycles", "computation, ms", "exposed, ms (all collectives)", "step, ms", "MFU",
            "whole recipe, hours", "dollars")  # fmt: skip
    plans = json.loads((_ROOT / "docs" / "plans.json").read_text(encoding="utf-8"))
    made = table(head, itertools.chain.from_iterable(map(_planned, plans)))
    pattern = r"(^#+ The table of plans\n(?:(?!^[#|]).*\n)*)(?:^\|.*\n)+"
    found, count = re.subn(
        pattern, lambda match: f"{match[1]}{made}\n", text, count=1, flags=re.MULTILINE
    )
    assert count == 1
    return found


# What a reader has -> the recipe, a note on it, and the chip with its number in a slice; or the
# topology of a plan in plans.json.
_TIMES: tuple[tuple[str, str, str, str | tuple[str, int]], ...] = (
    ("one A100", "modern_small", "a 68-million ModernBERT", ("NVIDIA A100-SXM4-80GB", 1)),
    ("one H100", "modern_small", "", ("NVIDIA H100 80GB HBM3", 1)),
    ("v5e-8", "modern_small", "", ("TPU v5e", 8)),
    ("v5e-64", "modernbert_base_50b", "a ModernBERT-Base from 50 billion tokens", "v5e:8x8"),
    ("v5e-64", "bert_large_64core", "BERT-Large as published", "v5e:8x8"),
)
_UTILIZATION = 0.25  # assumed share of the peak rate
_DEMO = "| two CPU cores | `modern_tiny_cpu` (`make demo`) | 3 minutes | measured, whole demo |"


def with_times(text: str) -> str:
    """Returns README.md with its table of recipes and times."""
    plans = json.loads((_ROOT / "docs" / "plans.json").read_text(encoding="utf-8"))
    rows = [_DEMO]
    for owned, recipe, note, place in _TIMES:
        if isinstance(place, str):
            plan = next(p for p in plans if (p["config"], p["topology"]) == (recipe, place))
            time = f"{plan['total_hours']:.1f} hours, ${plan['dollars']:,.0f}"
            source = "[`bert-jax plan`](benchmarks/results/tpu-plans.md#the-table-of-plans): "
            source += "a lower bound, at list price"
        else:
            chip, count = place
            loaded = config_loader.load_config(recipe)
            flops = sum(
                phase.steps * train_flops(OBJECTIVES[loaded.objective], loaded.model, phase)
                for phase in loaded.phases
            )
            seconds = flops / (_UTILIZATION * count * PEAK_BF16[chip])
            time, source = f"{seconds / 3600:.0f} hours", "FLOPs at a quarter of the peak rate"
        named = f"`{recipe}`, {note}" if note else f"`{recipe}`"
        rows.append(f"| {owned} | {named} | {time} | {source} |")
    head = "| you have | recipe | time | source of the time |\n|---|---|---|---|\n"
    pattern = r"(^## Which recipe\?\n\n)(?:^\|.*\n)+"
    made = head + "\n".join(rows)
    found, count = re.subn(
        pattern, lambda match: f"{match[1]}{made}\n", text, count=1, flags=re.MULTILINE
    )
    assert count == 1
    return found


def _planned(plan: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields the rows of a plan, one per phase; the first row has the figures of the plan."""
    line = f"`{plan['config']} --topology {plan['topology']}"
    line += f" --slices {plan['slices']}" * (plan["slices"] > 1)
    line += "".join(f" --set {override}" for override in plan["overrides"]) + "`"
    hours = f"{plan['total_hours']:.1f}"
    dollars = "not known" if plan["dollars"] is None else f"{plan['dollars']:,.0f}"
    for number, phase in enumerate(plan["phases"]):
        yield (
            "" if number else line,
            "" if number else str(plan["devices"]),
            f"{phase['global_batch_size']:,} x {phase['sequence_length']:,}",
            f"{phase['memory_bytes'] / 2**30:.2f}",
            f"{phase['cycles'] / 1e6:.1f}",
            f"{1e3 * phase['compute_seconds']:.1f}",
            f"{1e3 * phase['exposed_seconds']:.1f} ({1e3 * phase['collective_seconds']:.1f})",
            f"{1e3 * phase['step_seconds']:.1f}",
            f"{100 * phase['mfu']:.0f} %",
            "" if number else hours,
            "" if number else dollars,
        )


def main() -> int:
    check_calls((_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    plans = _ROOT / "benchmarks" / "results" / "tpu-plans.md"
    readme = _ROOT / "README.md"
    made = {
        readme: with_times(readme.read_text(encoding="utf-8")),
        _ROOT / "docs" / "data-flow.svg": picture.picture(),
        _REFERENCE / "cli.md": cli(),
        _REFERENCE / "config.md": config(),
        _REFERENCE / "recipes.md": recipes(),
        _REFERENCE / "exit-codes.md": exit_codes(),
        _REFERENCE / "api.md": api(),
        plans: with_plans(plans.read_text(encoding="utf-8")),
    }
    stale = [p for p, t in made.items() if not p.is_file() or p.read_text(encoding="utf-8") != t]
    if "--check" not in sys.argv[1:]:
        for path in stale:
            path.parent.mkdir(exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
        return 0
    for path in stale:
        print(f"{path} is not up to date")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
