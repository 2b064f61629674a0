"""The verb `doctor`: options, call, and the table that it prints."""

import contextlib
import json
import os
import sys
import time
from typing import Any

from bert_jax.cli.options import overrides, processes
from bert_jax.cli.output import in_options, table
from bert_jax.cli.training import pretrain
from bert_jax_lab.cli.plan import TOPOLOGY

SUMMARY = "check in a minute what would go wrong with a run later"
DETAILS = (
    "Takes what pretrain takes, all of it optional: versions, devices, memory, config, corpus, "
    "workdir, bucket, hosts, compilation and predicted hours are checked, each with its remedy. "
    "Nothing is changed. Without CONFIG it checks the machine. Exit code 0 if nothing failed, "
    "else that of the first failure; a failing network (75) and an unknown error (1) count last. "
    "Example: bert-jax doctor bert_base --corpus runs/corpus --workdir runs/base"
)


def add_options(parser: Any) -> None:
    # The command of a run, with another verb: what it would meet is found out.
    pretrain.add_options(parser)
    for action in parser._actions:
        if action.dest in ("config", "corpus", "workdir"):
            action.required = False
        if action.dest == "config":
            action.nargs = "?"
        if action.dest == "json":
            action.help = "print the findings as JSON, instead of the table"
    parser.add_argument("--topology", metavar="NAME", help=f"the devices to be found: {TOPOLOGY}")


def run(arguments: Any) -> int:
    began = time.monotonic()
    from bert_jax.runtime.distributed import Connection
    from bert_jax_lab.doctor.checked_run import Case
    from bert_jax_lab.doctor.examination import examine

    found = processes(arguments)
    is_alone = not found["detect"] and all(
        found[name] is None for name in found if name != "detect"
    )
    report = examine(
        Case(
            config_name=arguments.config,
            overrides=overrides(arguments),
            corpus_directory=arguments.corpus,
            workdir=arguments.workdir,
            topology_name=arguments.topology,
            init_from=arguments.init_from,
            allow_missing_heads=arguments.allow_missing_heads,
            ignore_unexpected=arguments.ignore_unexpected,
            allowed_changes=arguments.allow_change,
            resume_step=arguments.resume_step,
            fit=arguments.fit,
            expect=arguments.expect or None,
            connection=None if is_alone else Connection(**found),
        )
    )
    if report.is_main:
        told = _in_options(report.to_json(), arguments.option_names)
        if arguments.json:
            print(json.dumps(told, indent=2))
        else:
            _print(told, time.monotonic() - began)
    if report.is_unfinished:
        # At an ordinary exit Python would wait for the compilation, however long it takes.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(report.exit_code)
    return report.exit_code


def _in_options(told: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    checks = [
        check | {part: in_options(check[part], names) for part in ("found", "remedy")}
        for check in told["checks"]
    ]
    return told | {"checks": checks}


def _print(told: dict[str, Any], seconds: float) -> None:
    rows = []
    for check in told["checks"]:
        lines = [
            line for line in (check["found"], check["remedy"] and f"-> {check['remedy']}") if line
        ]
        rows.append((check["check"], check["result"], "\n".join(lines)))
    table("bert-jax doctor", ("check", "result", "what was found -> what to do"), rows)
    skipped = f", {told['skipped']} skipped" if told["skipped"] else ""
    print(
        f"{told['passed']} passed, {told['warned']} warned, {told['failed']} failed{skipped}, in "
        f"{seconds:.0f} s"
    )
