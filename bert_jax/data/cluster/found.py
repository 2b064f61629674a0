"""The findings of each unit, in the folder of a try."""

import io
import json
from collections.abc import Iterable, Iterator

import numpy as np

from bert_jax.data.cluster.values import Job
from bert_jax.data.corpus.survey import Found
from bert_jax.data.sources.stream import Findings
from bert_jax.errors import UsageError

_ARRAYS = ("digests", "words", "draws", "priorities", "sizes")


def keep_found(job: Job, unit: int, found: Found) -> None:
    """Leaves what was found of a unit, but for texts."""
    noted = {
        "files": {name: str(error) for name, error in found.findings.files.items()},
        "first_bad": found.findings.first_bad,
        "records": found.findings.records,
        "without_text": found.findings.without_text,
        # How a document begins that has text of a test set is text, and stays where it was read.
        "contaminated": {number: sorted(of) for number, (_, of) in found.records.items()},
    }
    arrays = {name: getattr(found, name) for name in _ARRAYS}
    if found.keys is not None:
        arrays["keys"] = found.keys
    packed = io.BytesIO()
    np.savez(packed, **arrays, noted=np.frombuffer(json.dumps(noted).encode(), np.uint8))
    job.scratch.write(_file(unit), packed.getvalue())


def read_found(job: Job, unit: int) -> Found:
    """Returns what `keep_found` has left."""
    with np.load(io.BytesIO(job.scratch.read(_file(unit))), allow_pickle=False) as packed:
        arrays = {name: packed[name] for name in _ARRAYS}
        keys = packed.get("keys")
        noted = json.loads(packed["noted"].tobytes())
    findings = Findings()
    findings.files = {name: UsageError(why) for name, why in noted["files"].items()}
    findings.first_bad = noted["first_bad"]
    findings.records.update(noted["records"])
    findings.without_text = noted["without_text"]
    records = {int(number): ("", set(of)) for number, of in noted["contaminated"].items()}
    return Found(findings=findings, records=records, keys=keys, texts={}, **arrays)


def read_digests(job: Job, units: Iterable[int]) -> Iterator[bytes]:
    """Yields the digests of the documents of each unit."""
    for found in job.scratch.read_several([_file(unit) for unit in units]):
        with np.load(io.BytesIO(found), allow_pickle=False) as packed:
            yield packed["digests"].tobytes()


def _file(unit: int) -> str:
    return f"found/{unit:06}.npz"
