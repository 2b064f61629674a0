"""Runs all checks in order; each check uses the results of earlier checks.

Existing files are not changed. A probe of the storage is written next to the workdir and removed.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bert_jax.errors import Unreachable, UsageError
from bert_jax.progress import ticking
from bert_jax.workdir.storage import choose_gcsfs
from bert_jax_lab.doctor.arguments import Arguments
from bert_jax_lab.doctor.finding import FAILED, PASSED, SKIPPED, WARNED, Finding, of_error, skipped

_WORST_LAST = (PASSED, SKIPPED, WARNED, FAILED)
_ANSWER_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """The findings of all processes, by the name of the check."""

    findings: dict[str, Finding]
    # Whether this process prints the report.
    is_main: bool = True

    @property
    def exit_code(self) -> int:
        """Returns the documented exit code of the first check that failed; 0 if none failed.

        Unknown and network errors count last, because they may be gone when the run begins.
        """
        codes = [f.exit_code for f in self.findings.values() if f.result == FAILED]
        codes.sort(key=lambda code: code in (1, Unreachable.exit_code))
        known = (*range(1, 9), Unreachable.exit_code)
        return next((code if code in known else UsageError.exit_code for code in codes), 0)

    def to_json(self) -> dict[str, Any]:
        """Returns the findings as a list, their number per result, and the exit code."""
        findings = self.findings.values()
        return {
            "checks": [
                {"check": name, **dataclasses.asdict(finding)}
                for name, finding in self.findings.items()
            ],
            **{result: sum(f.result == result for f in findings) for result in _WORST_LAST},
            "exit_code": self.exit_code,
        }


class Checks:
    """Makes checks and keeps their findings; a failed check does not hide other checks."""

    def __init__(self) -> None:
        self.findings: dict[str, Finding] = {}
        # Whether several processes are connected and make collective checks together.
        self.is_connected = False

    def __call__(
        self, name: str, check: Callable[..., Any], *needed: Any, is_collective: bool = False
    ) -> Any:
        """Makes a check with values from earlier checks, and keeps its finding.

        `check` returns a finding, or a finding and a value for later checks. Returns the value, or
        None. The check is skipped if a needed value is None, or if it is collective and another
        process cannot make it.
        """
        is_able, value = all(each is not None for each in needed), None
        with ticking(f"checking: {name}"):
            if is_collective and not self._all_are(is_able, name):
                finding = skipped("another process cannot take part, because a check failed there")
            elif not is_able:
                finding = skipped("it needs a check that failed")
            else:
                try:
                    finding = check(*needed)
                    if isinstance(finding, tuple):
                        finding, value = finding
                except Exception as error:
                    finding = of_error(error)
        self.findings[name] = finding
        return value

    def _all_are(self, is_able: bool, name: str) -> bool:
        """Returns whether every other process can make a check; called by all processes."""
        if not self.is_connected:
            return True
        from bert_jax.runtime import distributed

        answers = distributed.exchange(f"able {name}", str(is_able), seconds=_ANSWER_SECONDS)
        return not is_able or set(answers) == {"True"}


def examine(arguments: Arguments) -> Report:
    """Makes every check that the arguments allow."""
    checks = Checks()
    if arguments.workdir is not None:
        choose_gcsfs()
    _examine(arguments, checks)
    if not checks.is_connected:
        return Report(findings=checks.findings)
    from bert_jax.runtime import distributed

    findings, is_main = merged(checks.findings), distributed.is_main()
    distributed.disconnect()
    return Report(findings=findings, is_main=is_main)


def _examine(arguments: Arguments, checks: Checks) -> None:
    """Makes the checks in order; slow checks come last."""
    from bert_jax_lab.doctor import versions

    checks("versions", versions.versions)
    try:
        from bert_jax_lab.doctor import corpus as text
        from bert_jax_lab.doctor import hosts, machine, settings, speed, storage
    except ImportError as error:  # for example, from a wrong version of jax
        checks.findings["imports"] = of_error(error)
        return
    has_config, has_corpus = arguments.config is not None, arguments.corpus is not None
    place = arguments.workdir
    config = corpus = mesh = memory = save = timings = None
    if has_config:
        config = checks("config", lambda: settings.config(arguments))
    if has_corpus:
        corpus = checks("corpus", lambda path: text.files(path, config), arguments.corpus)
    is_met: bool | None = True
    if arguments.connection is not None:
        is_met = checks("hosts", hosts.hosts, arguments.connection)
        checks.is_connected = bool(is_met)
    is_ready = checks("devices", lambda _: machine.devices(arguments.topology, config), is_met)
    if has_config and arguments.init_from is not None:
        config = checks(
            "init-from", lambda c, _: settings.beginning(arguments, c, corpus), config, is_ready
        )
    if has_config:
        checks("export", lambda c, _: settings.export(c), config, is_ready)
        mesh = checks("mesh", lambda c, _: settings.mesh(c), config, is_ready)
        memory = checks(
            "memory", lambda c, m: machine.memory(arguments, c, m), config, mesh, is_collective=True
        )
        config = memory.config if memory is not None else config
        checks("masked slots", settings.masks, config)
    if has_config and has_corpus:
        for name in ("vocabulary", "padding", "predictions", "epochs"):
            checks(name, getattr(text, name), config, corpus)
    if has_corpus:
        checks("text", lambda c: text.text(config, c), corpus)
    if place is not None and has_config and has_corpus:
        checks("workdir", lambda c, d, _: storage.held(arguments, c, d), config, corpus, is_ready)
    if place is not None:
        checks("checkpoint", lambda _: storage.newest(place), is_ready)
        save = checks("saving", lambda _: storage.saves(place), is_ready, is_collective=True)
    if place is not None and has_config:
        checks("room", lambda c, m: storage.room(place, c, m), config, memory)
    if has_config:
        timings = checks(
            "step",
            lambda *found: speed.steps(*found, seconds=arguments.seconds),
            config, mesh, memory, is_collective=True,
        )  # fmt: skip
        measured = timings or []
        checks("hours", lambda c, m: speed.hours(c, m, measured), config, mesh)
        if place is not None:
            checks(
                "save interval",
                lambda c, m, s: speed.saving(c, m, s, measured),
                config, memory, save,
            )  # fmt: skip


def merged(findings: Mapping[str, Finding]) -> dict[str, Finding]:
    """Returns the worst finding of each check in any process, with the number of the process."""
    from bert_jax.runtime import distributed

    own = json.dumps({name: dataclasses.asdict(f) for name, f in findings.items()})
    worst: dict[str, Finding] = {}
    for rank, text in enumerate(distributed.exchange("findings", own, seconds=_ANSWER_SECONDS)):
        for name, values in json.loads(text).items():
            finding = Finding(**values)
            place = _WORST_LAST.index(finding.result)
            if name not in worst or place > _WORST_LAST.index(worst[name].result):
                found = f"process {rank}: {finding.found}" if rank else finding.found
                worst[name] = dataclasses.replace(finding, found=found)
    return worst
