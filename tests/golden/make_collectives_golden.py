"""Writes collectives.json: how many collectives of each kind the tiny plans have.

    python -m tests.golden.make_collectives_golden

Needs the TPU compiler. A change of the counts is a change of what goes over the network in each
step: say why in the change that regenerates them.
"""

import contextlib
import io
import json
from importlib.metadata import version
from pathlib import Path

from bert_jax.__main__ import main
from tests.lab.planning.test_plan import TINY, collective_counts

_SLICES = (("v3:2x2", 1), ("v5e:2x2", 1), ("v5e:2x2", 2))


def write() -> None:
    counts = {}
    for topology, slices in _SLICES:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            main(
                [
                    "plan",
                    "tiny_docs_cpu",
                    "--topology",
                    topology,
                    "--slices",
                    str(slices),
                    "--json",
                    *TINY,
                ]
            )
        counts[f"{topology} x {slices}"] = collective_counts(json.loads(printed.getvalue()))
    golden = {"libtpu": version("libtpu"), "counts": counts}
    Path(__file__).with_name("collectives.json").write_text(json.dumps(golden, indent=2) + "\n")


if __name__ == "__main__":
    write()
