"""A batch with a loss of NaN costs one update, and nothing else."""

import json
import random

import pytest

from tests.chaos import IS_LONG
from tests.chaos.runs import STEPS, Started, lines, losses, state_digest

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("number", [1, 3, 10] if IS_LONG else [3])
def test_exactly_these_updates_are_skipped(tmp_path, corpus, number):
    chosen = sorted(random.Random(number).sample(range(1, STEPS + 1), number))
    named = ",".join(map(str, chosen))
    run = Started(tmp_path / "run", corpus, faults=[f"nan={named}"])
    omitted = Started(tmp_path / "omitted", corpus, faults=[f"omit={named}"])
    assert run.finish() == [0], run.log()
    assert omitted.finish() == [0], omitted.log()
    skips = [e["step"] for e in lines(run.workdir / "events.jsonl") if e["event"] == "skip"]
    assert skips == chosen
    assert [s for s, split, loss, _ in losses_or_none(run) if loss is None] == chosen
    assert state_digest(run.workdir) == state_digest(omitted.workdir)
    plain = [row for row in losses(omitted.workdir) if row[0] not in chosen or row[1]]
    assert [row for row in losses_or_none(run) if row[0] not in chosen or row[1]] == plain


def losses_or_none(run: Started) -> list[tuple]:
    text = (run.workdir / "metrics.jsonl").read_text()
    # Strict JSON has no NaN.
    rows = [json.loads(line, parse_constant=lambda name: 1 / 0) for line in text.splitlines()]
    found = [(r["step"], r.get("split", ""), r["loss"], r["mlm_loss"]) for r in rows]
    return sorted(found, key=lambda row: row[:2])
