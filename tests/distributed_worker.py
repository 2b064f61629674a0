"""One process of a run over several: `pretrain`, and a note of which rows it fed to which step.

    python -m tests.distributed_worker ROWS.json pretrain CONFIG ...

ROWS.json gets, for each step, the SHA-256 of every global row this process made (all arrays of the
batch, token ids and masks included).
"""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from bert_jax.__main__ import main
from bert_jax.training import device_feed


def watch_rows(output: Path, patch: Callable[..., None] = setattr) -> None:
    seen: dict[int, dict[int, str]] = {}
    make = device_feed.host_batch

    def host_batch(batch_at, step, ranges):
        batch = make(batch_at, step, ranges)
        numbers = [row for rows in ranges for row in rows]
        for place, number in enumerate(numbers):
            digest = hashlib.sha256()
            for name in sorted(batch):
                digest.update(batch[name][place].tobytes())
            seen.setdefault(int(step), {})[number] = digest.hexdigest()
        output.write_text(json.dumps(seen))
        return batch

    patch(device_feed, "host_batch", host_batch)


if __name__ == "__main__":
    watch_rows(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
