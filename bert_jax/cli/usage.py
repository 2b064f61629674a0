"""The grammar of the command line: its verbs, and what to type instead of a wrong word."""

import argparse
import ast
import difflib
import importlib
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from bert_jax import __version__, registry
from bert_jax.cli import options
from bert_jax.config import TrainConfig, field_names, flatten
from bert_jax.errors import shown
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
    "fill-mask": "bert_jax.cli.inference.fill_mask",
    "attention": "bert_jax_lab.cli.attention",
    "probe": "bert_jax_lab.cli.probe",
    "export": "bert_jax.cli.exchange.export",
    "import": "bert_jax.cli.exchange.import_",
    "average": "bert_jax.cli.exchange.average",
    "checkpoints": "bert_jax.cli.exchange.checkpoints",
    "report": "bert_jax_lab.cli.report",
    "doctor": "bert_jax_lab.cli.doctor",
    "plan": "bert_jax_lab.cli.plan",
    "show": "bert_jax_lab.cli.show",
}
VERBS = {verb: module for verb, module in _MODULES.items() if registry.is_available(module)}
# What people call a verb elsewhere -> the verb.
_CALLED = {
    "train": "pretrain", "pre-train": "pretrain", "fit": "pretrain", "run": "pretrain",
    "resume": "pretrain", "continue": "pretrain", "mlm": "pretrain",
    "data": "prepare", "tokenize": "prepare", "preprocess": "prepare", "corpus": "prepare",
    "eval": "evaluate", "test": "evaluate", "validate": "evaluate", "score": "evaluate",
    "fine-tune": "finetune", "tune": "finetune", "classify": "finetune",
    "infer": "predict", "inference": "predict", "encode": "embed", "vectors": "embed",
    "fill": "fill-mask", "mask": "fill-mask", "unmask": "fill-mask",
    "convert": "export", "save": "export", "load": "import", "download": "import",
    "list": "show configs", "ls": "show configs", "models": "show configs",
    "configs": "show configs", "config": "show", "recipes": "show configs",
    "check": "doctor", "diagnose": "doctor", "cost": "plan", "estimate": "plan",
    "plot": "report", "curves": "report", "log": "report", "logs": "report", "stats": "report",
    "branch": "checkpoints", "fork": "checkpoints", "rollback": "checkpoints",
    "merge": "average", "mean": "average", "sweep": "study", "compare": "study",
}  # fmt: skip
# What people call an option elsewhere -> what it may be here, of which a verb has one or none.
_OPTIONS: dict[str, tuple[str, ...]] = {
    called: options
    for names, options in (
        ("data dataset data-dir text file input source train-file corpus",
         ("source", "corpus", "train", "input")),
        ("model model-name model-path model-name-or-path pretrained init init-checkpoint ckpt "
         "checkpoint", ("checkpoint", "init-from")),
        ("out output output-dir out-dir outdir dir save-dir run-dir logdir",
         ("output", "workdir")),
        ("workdir run", ("checkpoint",)),
        ("task-name", ("task",)),
        ("validation-file dev-file eval-file validation", ("dev",)),
        ("report-to tracker-name", ("tracker",)),
        ("tokenizer-name vocab tokenizer-path", ("tokenizer",)),
        ("lower uncased do-lower-case", ("lowercase",)),
    )
    for called in names.split()
}  # fmt: skip
# What no option says as it is typed: the verb does it otherwise.
_OTHERWISE = {
    ("pretrain", "epochs"): "a run counts updates: --set phases.0.steps=N; 'bert-jax show rows "
    "CONFIG --corpus DIR' says how many rows an epoch has",
    **{(verb, name): "write --set compute.dtype=bfloat16"
       for verb in ("pretrain", "finetune") for name in ("bf16", "fp16")},
    **{(verb, "wandb"): "write --tracker wandb" for verb in ("pretrain", "finetune", "doctor")},
    **{(verb, name): "the same command resumes the run in --workdir, without an option"
       for verb in ("pretrain", "finetune")
       for name in ("resume", "resume-from", "resume-from-checkpoint", "resume_from_checkpoint")},
    **{("finetune", name): "fine-tuning counts passes over the rows: --epochs X"
       for name in ("steps", "max-steps", "num-steps", "train-steps")},
}  # fmt: skip


# Verbs that hand over what is after `--`: the option that it is, and the one that it belongs to.
_WITH_OTHERS = {"prepare": ("runner_options", "runner")}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are two lines: what the verb needs, and what to type instead."""

    words: Sequence[str] = ()

    def shorten_usage(self) -> None:
        """Leaves in the line of usage what a command cannot do without; the options are below."""
        formatter = self._get_formatter()
        formatter.add_usage(None, self._arguments(), [], prefix="")
        needed = [a for a in self._actions if a.required and a.option_strings]
        options = "".join(f" {a.option_strings[-1]} {a.metavar or 'VALUE'}" for a in needed)
        self.usage = f"{' '.join(formatter.format_help().split())}{options} [options]"

    def _arguments(self) -> list[argparse.Action]:
        """Returns what has no dashes before it, but what stands after `--`."""
        after = [options for options, _ in _WITH_OTHERS.values()]
        return [a for a in self._actions if not a.option_strings and a.dest not in after]

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, after the usage, and ends with code 2."""
        self.print_usage(sys.stderr)
        advice = self._instead() or f"{message} ('{self.prog} --help' explains)"
        self.exit(2, f"{self.prog}: error: {shown(advice)}\n")

    def _instead(self) -> str | None:
        """Returns what to type for the first option that is none; None where nothing is known."""
        for number, word in enumerate(self.words):
            if word == "--":
                break
            option, equals, value = word.partition("=")
            known, verb = self._option_string_actions, self.prog.rpartition(" ")[2]
            if option not in known and (verb, option.removeprefix("--")) in _OTHERWISE:
                return f"there is no {option}: {_OTHERWISE[verb, option.removeprefix('--')]}"
            if not option.startswith("--") or any(name.startswith(option) for name in known):
                continue
            following = self.words[number + 1 : number + 2]
            if not equals:
                value = following[0] if following and not following[0].startswith("-") else ""
            meant = self._meant(option.removeprefix("--"), value)
            return meant and f"there is no {option}: {meant}"
        return None

    def _meant(self, name: str, value: str) -> str | None:
        fields = field_names.meant(name, flatten(TrainConfig()))
        called = {each.replace("_", "-") for f in fields for each in field_names.synonyms(f)}
        options = [o.removeprefix("--") for o in self._option_string_actions if o[:2] == "--"]
        wanted = [o for o in options if o in called]
        wanted += [o for o in _OPTIONS.get(name.replace("_", "-"), ()) if o in options]
        given = f" {value}" if value else ""
        if wanted:
            return f"write --{wanted[0]}{given}"
        if name.upper() in [a.metavar for a in self._arguments()]:
            return f"write {value or name.upper()} without --{name}"
        if fields and "set" in options:
            return f"write --set {fields[0]}={value or 'VALUE'}"
        close = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
        return f"did you mean --{close[0]}{given}?" if close else None


def parse(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """Returns the arguments of a command.

    Without any it prints the help and ends with code 2, as a command that was cut short should
    fail; `help` and `help VERB` print it, too.
    """
    verbs = verbs_of(parser)
    if not words:
        parser.print_help()
        parser.exit(2)
    if words[0] == "help":
        words = [*(word for word in words[1:2] if word != "help"), "--help"]
    verb = words[0]
    if not verb.startswith("-") and verb not in verbs:
        meant = _CALLED.get(verb.lower().replace("_", "-"), verb)
        if meant.split()[0] in _MODULES.keys() - verbs.keys():
            parser.error(f"{meant!r} is part of {registry.LABORATORY}, which is not installed")
        close = (
            [meant] if meant != verb else difflib.get_close_matches(verb, verbs, n=1, cutoff=0.6)
        )
        hint = f", did you mean {close[0]!r}?" if close else ""
        parser.error(f"there is no verb {verb!r}{hint}")
    if verb in verbs:
        verbs[verb].words = words[1:]
    # argparse takes what is after `--` for arguments only where none could be before.
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


def command_parser() -> Parser:
    """Returns the parser of the command line, with a parser for each verb.

    The docstring of a verb's module is its help: a sentence for the list of verbs, paragraphs, and
    from the first command on, what keeps its lines.
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
    for name in VERBS:
        module = verb_module(name)
        summary, *paragraphs = (ast.get_docstring(options.parsed(module.__name__)) or "").split(
            "\n\n"
        )
        first = next((i for i, p in enumerate(paragraphs) if "\n  bert-jax" in p), len(paragraphs))
        verb = verbs.add_parser(
            name,
            help=f"{summary[0].lower()}{summary[1:]}".rstrip("."),
            description=textwrap.fill(" ".join([summary, *paragraphs[:first]]), _HELP_WIDTH),
            epilog="\n\n".join(paragraphs[first:]),
            formatter_class=raw,
        )
        options.add_options(verb, options_of(name))
        verb.shorten_usage()
    return parser


def _epilog() -> str:
    """Returns the end of the help, without the commands of verbs that are not there."""
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
