"""A bucket that answers 503, stalls or drops the connection, for each kind of request.

Lasting faults end with exit code 75, brief faults have no effect. No good step is set aside or
removed, and no checkpoint is read back for its manifest.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.chaos import long_form
from tests.chaos.runs import ROOT
from tests.faulty_bucket import KINDS, control, environment
from tests.limits import HUNG

pytestmark = pytest.mark.chaos


def run(address: str, tmp_path: Any, *what: Any) -> list[Any]:
    control(address, faults={}, latency=0.0, stream=0.0)
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.in_bucket", json.dumps(what)],
        cwd=ROOT,
        env=os.environ
        | environment(address)
        | {
            "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "1",
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=HUNG,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@long_form
@pytest.mark.parametrize("kind", KINDS)
def test_no_fault_of_the_network_costs_a_step(address, tmp_path, kind):
    (rows,) = run(address, tmp_path, ["matrix", [kind]])
    assert [row["how"] for row in rows] == [503, "stall", "drop"]
    for row in rows:
        # Exit code 75, or the steps that exist.
        newest = row["before"][0][-1]
        for name, (outcome, value) in row["lasting"].items():
            assert (outcome, value) == ("raised", 75) or outcome == "returned", (name, row)
            if outcome == "returned" and name in ("resume", "read"):
                assert value == newest, row
        assert row["after"] == [row["before"], newest], row
        assert (row["brief"], row["resumed"]) == ("returned", row["step"]), row
        if kind in ("list", "metadata", "media"):
            assert row["failed"] and row["lasting"]["resume"] == ["raised", 75], row


def test_damage_in_a_bucket_is_found_by_checksums(address, tmp_path):
    (found,) = run(address, tmp_path, ["manifests"])
    # Orbax reads its descriptions after a save of 450 kB; no array (307 kB) is read.
    data = [entry["size"] for name, entry in found["entries"].items() if "/d/" in name]
    assert found["asked"]["media bytes out"] < max(data)
    assert all({"size", "md5"} == entry.keys() for entry in found["entries"].values())
    assert found["good"] is None
    assert found["compared"]["media"] == 1 and found["compared"]["media bytes out"] < 5000
    assert "its checksum differs from the manifest" in found["flipped"]
    assert "cannot be read" in found["gone"]
    assert found["copied"] is None and "is damaged" in found["copy_damaged"]
