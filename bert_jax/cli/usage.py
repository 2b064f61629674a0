"""The grammar of the command line: its verbs, and what to write instead of a wrong word."""

import argparse
import difflib
import importlib
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from bert_jax import __version__, registry
from bert_jax.cli import options
from bert_jax.errors import did_you_mean, shown
from bert_jax.versions import REPOSITORY

_EPILOG = """\
A first run, from text to a filled-in word:

  bert-jax prepare --source docs: --output runs/corpus --vocab-size 8192
  bert-jax doctor tiny_docs_cpu --corpus runs/corpus --workdir runs/first
  bert-jax pretrain tiny_docs_cpu --corpus runs/corpus --workdir runs/first
  bert-jax fill-mask --checkpoint runs/first "The function returns a [MASK] of strings."
  bert-jax export --checkpoint runs/first --format hf --output runs/first-hf

`bert-jax VERB --help` explains a verb. Exit codes: 0 done; 2 wrong usage or config; 3 the workdir
holds a different run; 4 corpus damaged; 5 no usable checkpoint; 6 loss not finite; 7 storage
failed; 8 diverged; 42 preempted or 130 interrupted, state saved, 75 the network failed, and 200
hung: start it again; 141 nobody reads the output; 1 anything unexpected.
""" + (f"\nDocumentation and issues: {REPOSITORY}\n" if REPOSITORY else "")
_HELP_WIDTH = 78  # characters
# Verb -> its module, in the order of the help; the verbs of the laboratory where it is installed.
_MODULES = {
    "prepare": "bert_jax.cli.training.prepare",
    "pretrain": "bert_jax.cli.training.pretrain",
    "evaluate": "bert_jax.cli.training.evaluate",
    "finetune": "bert_jax.cli.training.finetune",
    "study": "bert_jax_lab.cli.study",
    "predict": "bert_jax.cli.inference.predict",
    "embed": "bert_jax.cli.inference.embed",
    "mine": "bert_jax.cli.inference.mine",
    "fill-mask": "bert_jax.cli.inference.fill_mask",
    "attention": "bert_jax_lab.cli.attention",
    "probe": "bert_jax_lab.cli.probe",
    "export": "bert_jax.cli.exchange.export",
    "average": "bert_jax.cli.exchange.average",
    "checkpoints": "bert_jax.cli.exchange.checkpoints",
    "report": "bert_jax_lab.cli.report",
    "doctor": "bert_jax_lab.cli.doctor",
    "plan": "bert_jax_lab.cli.plan",
    "show": "bert_jax_lab.cli.show",
}
VERBS = {verb: module for verb, module in _MODULES.items() if registry.is_available(module)}
_STEPS = ("--epochs N: fine-tuning counts epochs", "--set phases.0.steps=X")
_RESUME = "the same command without this option: it resumes the run in --workdir"
# Verbs and options of other programs -> what to write here: the first alternative with an option
# that the verb has. X stands for the value.
_FOREIGN: dict[str, tuple[str, ...]] = {
    "train": ("pretrain",),
    "eval": ("evaluate",),
    "fine-tune": ("finetune",),
    "infer": ("predict",),
    "encode": ("embed",),
    "convert": ("export",),
    "configs": ("show configs",),
    "--lr": ("--learning-rate X", "--set optimizer.learning_rate=X"),
    "--batch-size": ("--set phases.0.global_batch_size=X",),
    "--max-steps": _STEPS,
    "--steps": _STEPS,
    "--epochs": ("--set phases.0.steps=N: a run counts updates",),
    "--max-seq-length": ("--length X", "--set phases.0.sequence_length=X"),
    "--bf16": ("--set compute.dtype=bfloat16",),
    "--fp16": ("--set compute.dtype=bfloat16",),
    "--resume": (_RESUME,),
    "--resume-from-checkpoint": (_RESUME,),
    "--data": ("--source X", "--corpus X", "--train X"),
    "--input": ("--source X", "--corpus X"),
    "--model": ("--checkpoint X", "--init-from X"),
    "--workdir": ("--checkpoint X",),
    "--output-dir": ("--output X", "--workdir X"),
    "--wandb": ("--tracker wandb",),
}


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
        for number, word in enumerate(self.words):
            if word == "--":
                break
            option, equals, value = word.partition("=")
            if not option.startswith("--") or any(name.startswith(option) for name in known):
                continue
            following = self.words[number + 1 : number + 2]
            if not equals:
                value = following[0] if following and not following[0].startswith("-") else ""
            for text in _FOREIGN.get(option.lower().replace("_", "-"), ()):
                if not text.startswith("--") or text.split()[0] in known:
                    given = text[:-1] + value if text.endswith("X") and value else text
                    return f"there is no {option}: write {given}"
            if option[2:].upper() in [action.metavar for action in self._arguments()]:
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
    if not verb.startswith("-") and verb not in verbs:
        (meant,) = _FOREIGN.get(verb.lower().replace("_", "-"), (verb,))
        if meant.split()[0] in _MODULES.keys() - verbs.keys():
            parser.error(f"{meant!r} is part of {registry.LABORATORY}, which is not installed")
        close = (
            [meant] if meant != verb else difflib.get_close_matches(verb, verbs, n=1, cutoff=0.6)
        )
        hint = f", did you mean {close[0]!r}?" if close else ""
        parser.error(f"there is no verb {verb!r}{hint}")
    if verb in verbs:
        verbs[verb].words = words[1:]
    # argparse would take words before `--` for the words after it.
    at = words.index("--") if "--" in words and verb in _WITH_OTHERS else len(words)
    found, extra = parser.parse_known_args(words[:at])
    after = ""
    if verb in _WITH_OTHERS:
        options, of = _WITH_OTHERS[verb]
        extra = sorted([*getattr(found, options), *extra], key=words.index)
        setattr(found, options, [*words[at + 1 :]])
        if getattr(found, of) is not None:
            after = f"; those of the {of} come after --: ... -- {' '.join(extra)}"
    if extra:
        verbs[found.verb].error(f"unrecognized arguments: {' '.join(extra)}{after}")
    return found


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """Returns the parser of each verb."""
    (verbs,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(verbs.choices)


def verb_module(name: str) -> Any:
    """Returns the module of a verb, whose `run` takes its options and returns an exit code."""
    return importlib.import_module(VERBS[name])


def options_of(name: str) -> type:
    """Returns the class of a verb's options: `FillMaskOptions` for fill-mask."""
    return getattr(verb_module(name), f"{name.title().replace('-', '')}Options")


def command_parser(words: Sequence[str] | None = None) -> Parser:
    """Returns the parser of the command line, with the options of all verbs.

    With the `words` of a command, only its verb has options, and no other module is imported. The
    docstring of a verb's module is its help: a sentence for the list of verbs, paragraphs, and from
    the first command on, lines that are not wrapped.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="bert-jax",
        description="Pre-train BERT-family encoders with JAX, on one machine or on a TPU pod.",
        epilog=_epilog(),
        formatter_class=raw,
    )
    parser.add_argument("-V", "--version", action="version", version=f"bert-jax {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, module in VERBS.items():
        summary, *paragraphs = _docstring(module).split("\n\n")
        first = next((i for i, p in enumerate(paragraphs) if "\n  bert-jax" in p), len(paragraphs))
        added = verbs.add_parser(
            name,
            help=f"{summary[0].lower()}{summary[1:]}".rstrip("."),
            description=textwrap.fill(" ".join([summary, *paragraphs[:first]]), _HELP_WIDTH),
            epilog="\n\n".join(paragraphs[first:]),
            formatter_class=raw,
        )
        if words is None or name in words[:2]:
            options.add_options(added, options_of(name))
            added.shorten_usage()
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


def options_by_name(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Returns each option of any verb by the name of its argument."""
    return {
        action.dest: action.option_strings[0]
        for verb in verbs_of(parser).values()
        for action in verb._actions
        if action.option_strings
    }
