"""The grammar of the command line: its verbs, and what to write instead of a wrong word."""

import argparse
import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from bert_jax import __version__, registry
from bert_jax.cli import options
from bert_jax.config import TrainConfig
from bert_jax.config.conversion import paths_of
from bert_jax.errors import did_you_mean, shown
from bert_jax.versions import REPOSITORY

_EPILOG = """\
A first run, from text to a filled-in word:

  bert-jax prepare --source docs: --output-dir runs/corpus --vocab-size 8192
  bert-jax doctor tiny_docs_cpu --corpus runs/corpus --workdir runs/first
  bert-jax pretrain tiny_docs_cpu --corpus runs/corpus --workdir runs/first
  bert-jax fill-mask runs/first "The function returns a [MASK] of strings."
  bert-jax export runs/first --output-dir runs/first-hf

`bert-jax VERB --help` explains a verb. Exit codes: 0 success; 1 unexpected error; 2 wrong usage or
config; 3 the workdir holds a different run; 4 damaged corpus; 5 no usable checkpoint; 6 loss not
finite; 7 storage failed; 8 diverged; 141 output closed. After these codes the same command resumes:
42 preempted, 75 network failed, 130 interrupted, 200 hung.
""" + (f"\nDocumentation and issues: {REPOSITORY}\n" if REPOSITORY else "")
_HELP_WIDTH = 78  # characters
# Group -> verb -> its module, in the order of the help.
_GROUPS = {
    "Data": {
        "prepare": "bert_jax.cli.training.prepare",
        "corpus": "bert_jax_lab.cli.corpus",
        "mine": "bert_jax.cli.inference.mine",
    },
    "Train": {
        "pretrain": "bert_jax.cli.training.pretrain",
        "finetune": "bert_jax.cli.training.finetune",
        "study": "bert_jax_lab.cli.study",
    },
    "Evaluate": {
        "evaluate": "bert_jax.cli.training.evaluate",
        "probe": "bert_jax_lab.cli.probe",
        "attention": "bert_jax_lab.cli.attention",
        "report": "bert_jax_lab.cli.report",
    },
    "Use": {
        "predict": "bert_jax.cli.inference.predict",
        "embed": "bert_jax.cli.inference.embed",
        "fill-mask": "bert_jax.cli.inference.fill_mask",
    },
    "Export": {
        "export": "bert_jax.cli.exchange.export",
        "average": "bert_jax.cli.exchange.average",
    },
    "Operate": {
        "checkpoints": "bert_jax.cli.exchange.checkpoints",
        "doctor": "bert_jax_lab.cli.doctor",
    },
    "Plan": {
        "config": "bert_jax_lab.cli.config",
        "plan": "bert_jax_lab.cli.plan",
    },
}
_MODULES = {verb: module for verbs in _GROUPS.values() for verb, module in verbs.items()}
# The verbs of the laboratory only if it is installed.
VERBS = {verb: module for verb, module in _MODULES.items() if registry.is_available(module)}
GROUPS = {name: tuple(verb for verb in verbs if verb in VERBS) for name, verbs in _GROUPS.items()}
# Verbs and options of other programs, of one meaning -> the replacement: the first alternative with
# an option that the verb has, or without one. X is the value. `_WITHOUT` is for verbs with a
# positional CHECKPOINT or WORKDIR.
_WITHOUT, _NOTHING = "X without this option", "the same command without this option"
_FOREIGN: dict[tuple[str, ...], tuple[str, ...]] = {
    ("infer",): ("predict",),
    ("encode",): ("embed",),
    ("convert",): ("export",),
    ("configs",): ("config list",),
    ("import",): ("pretrain CONFIG --init-from DIR",),
    ("--lr",): ("--learning-rate X", "--set optimizer.learning_rate=X"),
    ("--train-batch-size", "--per-device-train-batch-size"): (
        "--batch-size N: examples per update, over all devices",
    ),
    ("--steps", "--max-steps"): ("--steps X", "--epochs N: fine-tuning counts epochs"),
    ("--epochs", "--num-train-epochs"): (
        "--epochs X",
        "--steps N ('bert-jax config sequences CONFIG --corpus DIR' prints sequences per epoch)",
        f"{_NOTHING}: only pretrain and finetune train",
    ),
    ("--length", "--max-length", "--max-seq-length"): (
        "--max-length X",
        "--set phases.0.sequence_length=X",
    ),
    ("--mlm-probability",): ("--set data.masked_lm_prob=X",),
    ("--logging-steps",): ("--set log_every_steps=X",),
    ("--save-steps",): ("--set checkpoint.every_steps=X",),
    ("--eval-steps",): ("--set evaluation.every_steps=X",),
    ("--bf16", "--fp16"): (
        "--set compute.dtype=bfloat16",
        f"{_NOTHING}: only training has a choice of number type",
    ),
    ("--gpu", "--gpus", "--device"): (
        f"{_NOTHING}: it uses all devices; CUDA_VISIBLE_DEVICES=0 or JAX_PLATFORMS=cpu limits them",
    ),
    ("--do-train", "--do-eval"): (
        f"{_NOTHING}: pretrain and finetune train and evaluate, evaluate only evaluates",
    ),
    ("--resume", "--resume-from-checkpoint"): (f"{_NOTHING}: a repeated command resumes",),
    ("--data", "--input", "--train-file", "--dataset-name"): (
        "--train X",
        "--source X",
        "--corpus DIR, made by bert-jax prepare",
    ),
    ("--checkpoint", "--model", "--model-name-or-path", "--workdir"): (_WITHOUT, "--init-from X"),
    ("--output", "--output-dir", "--output-file"): (
        "--output-dir X",
        "--output-file X",
        "--workdir X",
    ),
    ("--wandb", "--report-to"): ("--tracker wandb",),
}
_REPLACEMENTS = {name: texts for names, texts in _FOREIGN.items() for name in names}


# Verbs that pass on the words after `--`: the option with these words, and the option that uses
# them.
_WITH_OTHERS = {"prepare": ("runner_options", "runner")}


class Parser(argparse.ArgumentParser):
    """A parser with errors of two lines: the usage, and what to write instead."""

    words: Sequence[str] = ()

    def shorten_usage(self) -> None:
        """Limits the line of usage to the required arguments and options."""
        formatter = self._get_formatter()
        formatter.add_usage(None, self._arguments(), [], prefix="")
        needed = [a for a in self._actions if a.required and a.option_strings]
        options = "".join(f" {a.option_strings[-1]} {a.metavar or 'VALUE'}" for a in needed)
        self.usage = f"{' '.join(formatter.format_help().split())}{options} [options]"

    def ordered(self, words: Sequence[str]) -> list[str]:
        """Returns the words of a command with the positional arguments behind all options.

        argparse needs this order where the last argument may be repeated. A field of the config, a
        word with a dot such as `--model.hidden_size 256`, becomes `--set model.hidden_size=256`.
        """
        known = self._option_string_actions
        options, arguments, rest = [], [], iter(words)
        for word in rest:
            field = re.fullmatch(r"--(\w+(?:\.\w+)+)(?:=(.*))?", word, re.DOTALL)
            if field and "--set" in known:
                value = field[2] if field[2] is not None else next(rest, None)
                if value is None:
                    self.error(f"argument {word}: expected one argument")
                options += ["--set", f"{field[1]}={value}"]
            elif re.match(r"-[^\d]", word) and " " not in word:
                options.append(word)
                action = known.get(word) or next(
                    (known[o] for o in known if o.startswith(word)), None
                )
                if action is not None and action.nargs is None:
                    options += [value for value in [next(rest, None)] if value is not None]
            else:
                arguments.append(word)
        return [*options, *arguments]

    def _arguments(self) -> list[argparse.Action]:
        """Returns the arguments without dashes, other than the words after `--`."""
        after = [options for options, _ in _WITH_OTHERS.values()]
        return [a for a in self._actions if not a.option_strings and a.dest not in after]

    def error(self, message: str) -> NoReturn:
        """Prints the usage and the error, and ends with code 2."""
        self.print_usage(sys.stderr)
        advice = self._instead() or f"{message} ('{self.prog} --help' explains)"
        self.exit(2, f"{self.prog}: error: {shown(advice)}\n")

    def _instead(self) -> str | None:
        """Returns what to write for the first unknown option, or None if no option is similar."""
        known = self._option_string_actions
        places = {action.metavar for action in self._arguments()}
        for number, word in enumerate(self.words):
            if word == "--":
                break
            option, equals, value = word.partition("=")
            if not option.startswith("--") or any(name.startswith(option) for name in known):
                continue
            following = self.words[number + 1 : number + 2]
            if not equals:
                value = following[0] if following and not following[0].startswith("-") else ""
            plain = option.lower().replace("_", "-")
            paths = paths_of(TrainConfig(), plain[2:].replace("-", "_"))
            fields = (f"--set {path}=X" for path in paths)
            for text in (f"{plain} X", *_REPLACEMENTS.get(plain, ()), *fields):
                if text == _WITHOUT and places & {"CHECKPOINT", "WORKDIR"}:
                    return f"there is no {option}: write {value or 'CHECKPOINT'} without {option}"
                if text.split()[0] in known or not text.startswith(("--", "X")):
                    *_, end = text  # X is at the end, if there is a value to repeat
                    text = text[:-1] + value if end == "X" and value else text
                    return f"there is no {option}: write {text}"
            if option[2:].upper() in places:
                return f"there is no {option}: write {value or option[2:].upper()} without {option}"
            hint = did_you_mean(option, (name for name in known if name.startswith("--")))
            return hint and f"there is no {option}.{hint}"
        return None


def parse(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """Returns the arguments of a command.

    Without words it prints the help and ends with code 2. `help` and `help VERB` print the help.
    """
    verbs = verbs_of(parser)
    if not words:
        parser.print_help()
        parser.exit(2)
    if words[0] == "help":
        words = [*(word for word in words[1:2] if word != "help"), "--help"]
    verb = words[0]
    if verb.startswith("-"):
        return parser.parse_args(words)
    if verb not in verbs:
        (meant,) = _REPLACEMENTS.get(verb.lower().replace("_", "-"), (verb,))
        if meant.split()[0] in _MODULES.keys() - verbs.keys():
            parser.error(f"{meant!r} is part of {registry.LABORATORY}, which is not installed")
        close = (
            [meant] if meant != verb else difflib.get_close_matches(verb, verbs, n=1, cutoff=0.6)
        )
        hint = f", did you mean {close[0]!r}?" if close else ""
        parser.error(f"there is no verb {verb!r}{hint}")
    chosen = verbs[verb]
    chosen.words = words[1:]
    # argparse would take words before `--` for the words after it.
    at = words.index("--") if "--" in words and verb in _WITH_OTHERS else len(words)
    found, extra = chosen.parse_known_args(chosen.ordered(words[1:at]))
    found.verb = verb
    after = ""
    if verb in _WITH_OTHERS:
        options, of = _WITH_OTHERS[verb]
        extra = sorted([*getattr(found, options), *extra], key=words.index)
        setattr(found, options, [*words[at + 1 :]])
        if getattr(found, of) is not None:
            after = f"; those of the {of} come after --: ... -- {' '.join(extra)}"
    if extra and not extra[0].startswith("-") and not after:
        chosen.error(f"there are too many arguments: {' '.join(extra)}")
    if extra:
        chosen.error(f"unrecognized arguments: {' '.join(extra)}{after}")
    return found


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """Returns the parser of each verb."""
    (verbs,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(verbs.choices)


def verb_module(name: str) -> Any:
    """Returns the module of a verb, whose `run` takes its options and returns an exit code."""
    return importlib.import_module(VERBS[name])


def options_of(name: str) -> type:
    """Returns the class of a verb's options: the last one that its module defines."""
    module = verb_module(name)
    return [
        found
        for found in vars(module).values()
        if getattr(found, "__module__", "") == module.__name__ and isinstance(found, type)
    ][-1]


def command_parser(words: Sequence[str] | None = None) -> Parser:
    """Returns the parser of the command line, with the options of all verbs.

    With the `words` of a command, only its verb has options, and no other module is imported. The
    docstring of a verb's module is its help: a sentence for the list of verbs, paragraphs, and from
    the first command on, lines that are not wrapped.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="bert-jax",
        usage="bert-jax [-h] [-V] VERB ...",
        formatter_class=raw,
    )
    parser.add_argument("-V", "--version", action="version", version=f"bert-jax {__version__}")
    verbs = parser.add_subparsers(prog="bert-jax", dest="verb", help=argparse.SUPPRESS)
    summaries = {}
    for name, module in VERBS.items():
        summaries[name], *paragraphs = _docstring(module).split("\n\n")
        first = next((i for i, p in enumerate(paragraphs) if "\n  bert-jax" in p), len(paragraphs))
        added = verbs.add_parser(
            name,
            description=textwrap.fill(
                " ".join([summaries[name], *paragraphs[:first]]),
                _HELP_WIDTH,
                break_on_hyphens=False,
            ),
            epilog="\n\n".join(paragraphs[first:]),
            formatter_class=raw,
        )
        if words is None or name in words[:2]:
            options.add_options(added, options_of(name))
            added.shorten_usage()
    listed = ["Pre-train BERT-family encoders with JAX, on one machine or on a TPU pod."]
    for group, names in GROUPS.items():
        lines = [f"  {name:<12} {summaries[name].rstrip('.')}" for name in names]
        listed.append("\n".join([f"{group}:", *lines]) if lines else "")
    parser.description = "\n\n".join(filter(None, listed))
    parser.epilog = _epilog()
    return parser


def _docstring(module: str) -> str:
    """Returns the docstring of a module without importing it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    return inspect.cleandoc(text.partition('"""')[2].partition('"""')[0])


def _epilog() -> str:
    """Returns the end of the help, without the commands of verbs that are not installed."""
    absent = tuple(f"  bert-jax {verb} " for verb in _MODULES.keys() - VERBS.keys())
    return "".join(x for x in _EPILOG.splitlines(keepends=True) if not x.startswith(absent))


def options_by_name(parser: argparse.ArgumentParser, verb: str | None = None) -> dict[str, str]:
    """Returns the option, or the name of a positional argument, of each argument of any verb.

    If verbs have different options for an argument, `verb` decides.
    """
    verbs = verbs_of(parser)
    return {
        action.dest: action.option_strings[0] if action.option_strings else str(action.metavar)
        for name in sorted(verbs, key=lambda name: name == verb)
        for action in verbs[name]._actions
        if action.option_strings or action.metavar
    }
