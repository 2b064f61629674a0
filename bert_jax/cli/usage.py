"""The command line's grammar: which verb was meant, and what to type for an option that is none."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import NoReturn

from bert_jax import config_names
from bert_jax.config import TrainConfig, flatten

# What people call a verb elsewhere -> the verb.
_VERBS = {
    "train": "pretrain", "pre-train": "pretrain", "fit": "pretrain", "run": "pretrain",
    "resume": "pretrain", "continue": "pretrain", "mlm": "pretrain",
    "data": "prepare", "tokenize": "prepare", "preprocess": "prepare", "corpus": "prepare",
    "eval": "evaluate", "test": "evaluate", "validate": "evaluate", "score": "evaluate",
    "fine-tune": "finetune", "tune": "finetune", "classify": "finetune",
    "infer": "predict", "inference": "predict", "encode": "embed", "vectors": "embed",
    "fill": "fill-mask", "mask": "fill-mask", "unmask": "fill-mask",
    "convert": "export", "save": "export", "load": "import", "download": "import",
    "list": "show", "ls": "show", "config": "show", "configs": "show", "models": "show",
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
        ("task-name", ("task",)),
        ("validation-file dev-file eval-file validation", ("dev",)),
        ("wandb report-to tracker-name", ("tracker",)),
        ("tokenizer-name vocab tokenizer-path", ("tokenizer",)),
        ("lower uncased do-lower-case", ("lowercase",)),
        ("resume-from-checkpoint resume-from", ("resume-step",)),
    )
    for called in names.split()
}  # fmt: skip
# What no option says as it is typed: the verb does it otherwise.
_OTHERWISE = {
    ("pretrain", "epochs"): "a run counts updates: --set phases.0.steps=N; 'bert-jax show rows "
    "CONFIG --corpus DIR' says how many rows an epoch has",
    **{(verb, name): "write --set compute.dtype=bfloat16"
       for verb in ("pretrain", "finetune") for name in ("bf16", "fp16")},
    ("pretrain", "resume"): "the same command resumes the run in --workdir, without an option",
    ("finetune", "resume"): "the same command resumes the run in --workdir, without an option",
    **{("finetune", name): "fine-tuning counts passes over the rows: --epochs X"
       for name in ("steps", "max-steps", "num-steps", "train-steps")},
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """A parser whose errors are two lines: what the verb needs, and what to type instead."""

    words: Sequence[str] = ()

    def shorten_usage(self) -> None:
        """Leaves in the line of usage what a command cannot do without; the options are below."""
        formatter = self._get_formatter()
        formatter.add_usage(None, [a for a in self._actions if not a.option_strings], [], prefix="")
        needed = [a for a in self._actions if a.required and a.option_strings]
        options = "".join(f" {a.option_strings[-1]} {a.metavar or 'VALUE'}" for a in needed)
        self.usage = f"{' '.join(formatter.format_help().split())}{options} [options]"

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, after the usage, and ends with code 2."""
        self.print_usage(sys.stderr)
        said = self._instead() or f"{message} ('{self.prog} --help' explains)"
        self.exit(2, f"{self.prog}: error: {said}\n")

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
        fields = config_names.meant(name, flatten(TrainConfig()))
        called = {each.replace("_", "-") for f in fields for each in config_names.synonyms(f)}
        options = [o.removeprefix("--") for o in self._option_string_actions if o[:2] == "--"]
        wanted = [o for o in options if o in called]
        wanted += [o for o in _OPTIONS.get(name.replace("_", "-"), ()) if o in options]
        given = f" {value}" if value else ""
        if wanted:
            return f"write --{wanted[0]}{given}"
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
        meant = _VERBS.get(verb.lower().replace("_", "-"))
        close = [meant] if meant else difflib.get_close_matches(verb, verbs, n=1, cutoff=0.6)
        hint = f", did you mean {close[0]!r}?" if close else ""
        parser.error(f"there is no verb {verb!r}{hint}")
    if verb in verbs:
        verbs[verb].words = words[1:]
    found, extra = parser.parse_known_args(words)
    if extra:
        verbs[found.verb].error(f"unrecognized arguments: {' '.join(extra)}")
    return found


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """Returns the parser of each verb."""
    (verbs,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(verbs.choices)
