"""Check a machine and a run before it starts.

Takes the options of pretrain, all of them optional. Checks versions, devices, memory, config,
corpus, workdir, bucket, hosts, compilation and predicted hours in about a minute, and prints a fix
for each failure. It changes nothing. Without CONFIG it checks the machine only. The exit code is 0
if no check failed, else the code of the first failure; a network failure (75) and an unknown error
(1) count last.

example:
  bert-jax doctor bert_base --corpus runs/corpus --workdir runs/base
"""

import json
import time
from typing import Any

from bert_jax.cli import usage
from bert_jax.cli.corpora import Corpora, corpora
from bert_jax.cli.options import Address, Positional, Processes
from bert_jax.cli.output import in_options, table
from bert_jax.cli.training import pretrain
from bert_jax.config.fields import section, setting


@section
class DoctorOptions(pretrain.PretrainOptions):
    # The same command line as pretrain, so that a user changes the verb only.
    config: Positional[str | None] = setting(
        None,
        "CONFIG: a config, as for pretrain: checks fields, mesh, masks, memory, compilation and "
        "hours",
    )
    corpus: Corpora = setting(
        (),
        "DIR|NAME=DIR: a directory of bert-jax prepare, or several: checks files, vocabulary, "
        "padding, epochs and repeated text",
    )
    workdir: Address | None = setting(
        None,
        "DIR: a workdir, also in a bucket: checks its run, its newest checkpoint, free space, and "
        "a save with its time",
    )
    json: bool = setting(False, "print the results as JSON in place of the table")
    profile_steps: str | None = setting(None, "A:B: as for pretrain; not checked")
    topology: str | None = setting(
        None,
        "NAME: the expected devices: generation and shape of a slice, for example v3:4x8, "
        "v4:4x4x4, v5e:8x8, tpu7x:2x4x4",
    )


def run(options: DoctorOptions) -> int:
    began = time.monotonic()
    from bert_jax.runtime.distributed import Connection
    from bert_jax_lab.doctor.arguments import Arguments
    from bert_jax_lab.doctor.examination import examine

    connection = Connection(**options.fields_of(Processes))
    report = examine(
        Arguments(
            config=options.config,
            overrides=options.changes(),
            corpus=corpora(options.corpus),
            workdir=options.workdir,
            topology=options.topology,
            init_from=options.init_from,
            allow_missing_heads=options.allow_missing_heads,
            ignore_unexpected=options.ignore_unexpected,
            allowed_changes=options.allow_change,
            fit_memory=options.fit_memory,
            connection=None if connection == Connection() else connection,
        )
    )
    if report.is_main:
        names = usage.options_by_name(usage.command_parser())
        shown = report.to_json()
        for check in shown["checks"]:
            check |= {part: in_options(check[part], names) for part in ("found", "remedy")}
        if options.json:
            print(json.dumps(shown, indent=2))
        else:
            _print(shown, time.monotonic() - began)
    return report.exit_code


def _print(shown: dict[str, Any], seconds: float) -> None:
    rows = []
    for check in shown["checks"]:
        lines = [check["found"], check["remedy"] and f"-> {check['remedy']}"]
        rows.append((check["check"], check["result"], "\n".join(filter(None, lines))))
    table("bert-jax doctor", ("check", "result", "found -> remedy"), rows)
    skipped = f", {shown['skipped']} skipped" if shown["skipped"] else ""
    print(
        f"{shown['passed']} passed, {shown['warned']} warned, {shown['failed']} failed"
        f"{skipped}, in {seconds:.0f} s"
    )
