"""The table of all checks, and the examination that goes through it.

Nothing that is there is changed. What has to be written is written beside the workdir and removed
again.
"""

import dataclasses
import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax.errors import Unreachable, UsageError
from bert_jax.progress import ticking
from bert_jax.workdir import storage
from bert_jax_lab.doctor.checked_run import COMES_FROM, Case, Check
from bert_jax_lab.doctor.finding import FAILED, PASSED, SKIPPED, WARNED, Finding, of_error, skipped

# In an order in which each finds what it needs; those that take long come last. The module of a
# check is imported at its turn: a wrong version of jax hides nothing but what needs jax.
CHECKS = (
    Check("versions", "versions:versions"),
    Check("config", "settings:config", ("config_name",)),
    Check("trackers", "settings:tracked", ("config",)),
    Check("corpus", "corpus:files", ("corpus_directory",)),
    Check("hosts", "hosts:hosts", ("connection",)),
    Check("devices", "machine:devices", ("met",)),
    Check("init-from", "settings:beginning", ("init_from", "config", "met")),
    Check("export", "settings:export", ("config", "met")),
    Check("mesh", "settings:mesh", ("config", "met")),
    Check("memory", "machine:memory", ("mesh",), is_collective=True),
    Check("masked slots", "settings:masks", ("config",)),
    Check("vocabulary", "corpus:vocabulary", ("config", "corpus")),
    Check("padding", "corpus:padding", ("config", "corpus")),
    Check("predictions", "corpus:predictions", ("config", "corpus")),
    Check("epochs", "corpus:epochs", ("config", "corpus")),
    Check("text", "corpus:text", ("corpus",)),
    Check("expected curve", "settings:expected", ("expect", "config", "corpus")),
    Check("workdir", "storage:held", ("workdir", "config", "corpus", "met")),
    Check("checkpoint", "storage:newest", ("workdir", "met")),
    Check("saving", "storage:saves", ("workdir", "met"), is_collective=True),
    Check("room", "storage:room", ("workdir", "state_bytes")),
    Check("step", "speed:steps", ("mesh", "settled"), is_collective=True),
    Check("hours", "speed:hours", ("mesh",)),
    Check("save interval", "speed:saving", ("save_seconds", "mesh", "state_bytes")),
)
_WORST_LAST = (PASSED, SKIPPED, WARNED, FAILED)
_ANSWER_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """The findings of all processes, by the name of the check."""

    findings: dict[str, Finding]
    # Whether this process is the one that tells.
    is_main: bool
    # Whether a compilation goes on, which an ordinary exit would wait for.
    is_unfinished: bool

    @property
    def exit_code(self) -> int:
        """Returns that of the first check that failed, where it is one of a kind; 0 if none did.

        What nobody has a name for, and a network that fails, count last: neither need be there when
        the run begins.
        """
        codes = [f.exit_code for f in self.findings.values() if f.result == FAILED]
        codes.sort(key=lambda code: code in (1, Unreachable.exit_code))
        known = (*range(1, 9), Unreachable.exit_code)
        return next((code if code in known else UsageError.exit_code for code in codes), 0)

    def count(self, result: str) -> int:
        return sum(finding.result == result for finding in self.findings.values())

    def to_json(self) -> dict[str, Any]:
        """Returns the findings as a list, how many there are of each kind, and the exit code."""
        return {
            "checks": [
                {"check": name, **dataclasses.asdict(finding)}
                for name, finding in self.findings.items()
            ],
            **{result: self.count(result) for result in _WORST_LAST},
            "exit_code": self.exit_code,
        }


def examine(case: Case, checks: Sequence[Check] = CHECKS) -> Report:
    """Makes every check that the case has the arguments for; none hides another."""
    if case.connection is None:
        case.met = True
    findings = {}
    if case.workdir is not None:
        storage.choose_gcsfs()
    for check in checks:
        with ticking(f"checking: {check.name}"):
            finding = _finding(check, case)
        if finding is not None:
            findings[check.name] = finding
    is_main = True
    if case.connection is not None and case.met:
        from bert_jax.runtime import distributed

        findings, is_main = _merged(findings), distributed.is_main()
        distributed.disconnect()
    return Report(findings=findings, is_main=is_main, is_unfinished=case.is_unfinished)


def _finding(check: Check, case: Case) -> Finding | None:
    """Returns the finding of a check; None if nothing that it is about was given."""
    given = [getattr(case, COMES_FROM.get(need, need)) for need in check.needs if need != "met"]
    if None in given:
        return None
    is_able = all(case.known(need) is not None for need in check.needs)
    if check.is_collective and not _all_are(is_able, check, case):
        return skipped("another process cannot take part, for what failed there")
    if not is_able:
        return skipped("it needs what failed above")
    module, name = check.function.split(":")
    try:
        return getattr(importlib.import_module(f"bert_jax_lab.doctor.{module}"), name)(case)
    except Exception as error:  # of any kind: the checks after it are made all the same
        return of_error(error)


def _all_are(is_able: bool, check: Check, case: Case) -> bool:
    """Returns whether every other process is able, too; all of them ask."""
    if case.connection is None or not case.met:
        return True
    from bert_jax.runtime import distributed

    answers = distributed.exchange(f"able {check.name}", str(is_able), seconds=_ANSWER_SECONDS)
    return not is_able or set(answers) == {"True"}


def _merged(findings: dict[str, Finding]) -> dict[str, Finding]:
    """Returns the worst finding of each check in any process, and which process that is."""
    from bert_jax.runtime import distributed

    own = json.dumps({name: dataclasses.asdict(f) for name, f in findings.items()})
    merged: dict[str, Finding] = {}
    for rank, text in enumerate(distributed.exchange("findings", own, seconds=_ANSWER_SECONDS)):
        for name, values in json.loads(text).items():
            theirs = Finding(**values)
            place = _WORST_LAST.index(theirs.result)
            if name not in merged or place > _WORST_LAST.index(merged[name].result):
                found = f"process {rank}: {theirs.found}" if rank else theirs.found
                merged[name] = dataclasses.replace(theirs, found=found)
    return {check.name: merged[check.name] for check in CHECKS if check.name in merged}
