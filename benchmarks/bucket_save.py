"""Measures the time of a save to a remote bucket, to compare it with the time before a preemption.

    python benchmarks/bucket_save.py --megabytes 300 --latency-ms 40 --stream-mbps 80

Saves a state of this size with the real code to a local server with the given latency and rate.
Prints how the time is spent, and what is read back. The server and this process share the
processor, so the measured rate is the smaller of the network's rate and this machine's rate. For a
state of --target-gb on --hosts that each write their share, the time of the bytes scales with the
size. The time of the requests stays constant, because each host sends the same number.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def measure(arguments: argparse.Namespace, address: str) -> dict[str, float]:
    import jax
    import numpy as np

    from bert_jax.config import CheckpointConfig
    from bert_jax.update.state import TrainState
    from bert_jax.workdir import location, manifest
    from bert_jax.workdir.checkpoint import Checkpoints
    from tests.faulty_bucket import control

    control(address, latency=arguments.latency_ms / 1000, stream=arguments.stream_mbps * 1e6)
    directory = location.opened("gs://bucket/run").path
    for name in ("config.json", "metrics.jsonl", "events.jsonl"):
        (directory / name).write_bytes(b"x" * 500_000)
    # Random numbers, which do not compress, in the sizes of BERT's matrices.
    rows, rng = 1024, np.random.default_rng(0)
    columns = max(1, arguments.megabytes * 10**6 // 24 // (4 * rows))
    arrays = {
        f"layer_{i}": jax.numpy.asarray(rng.random((rows, columns), np.float32)) for i in range(24)
    }
    norms = jax.numpy.zeros(8)
    state = TrainState(step=jax.numpy.int32(1), params=arrays, opt_state={}, recent_norms=norms)
    at: dict[str, float] = {}
    write = manifest.write

    def timed(*things, **facts):
        at["committed"] = time.monotonic()
        write(*things, **facts)
        at["described"] = time.monotonic()

    manifest.write = timed
    saving = Checkpoints(directory, CheckpointConfig())
    began = time.monotonic()
    location.at(directory).sync(patience=0)
    copied = time.monotonic()
    control(address)
    saving.save(state, step=1)
    held = time.monotonic()
    saving.close()
    asked = control(address)
    reading = time.monotonic()
    manifest_only = {k: v for k, v in asked.items() if k.startswith("media")}
    return {
        "megabytes": sum(a.nbytes for a in arrays.values()) / 1e6,
        "logs": copied - began,
        "loop_held_up": held - copied,
        "orbax": at["committed"] - copied,
        "manifest": at["described"] - at["committed"],
        "whole": at["described"] - began,
        "pruned": reading - at["described"],
        "megabytes_written": asked.get("insert bytes in", 0) / 1e6,
        "megabytes_read": manifest_only.get("media bytes out", 0) / 1e6,
        "requests": sum(v for k, v in asked.items() if " " not in k),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[30, 300])
    parser.add_argument("--latency-ms", type=float, default=40)
    parser.add_argument("--stream-mbps", type=float, default=80, help="megabytes per second")
    parser.add_argument("--target-gb", type=float, default=4.0)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        arguments.megabytes = arguments.megabytes[0]
        print(json.dumps(measure(arguments, os.environ["STORAGE_EMULATOR_HOST"])))
        os._exit(0)
    found = [_in_processes(arguments, size) for size in arguments.megabytes]
    for row in found:
        print(json.dumps({name: round(value, 2) for name, value in row.items()}))
    if len(found) < 2:
        return
    small, large = found[0], found[-1]
    rate = (large["megabytes"] - small["megabytes"]) / (large["whole"] - small["whole"])
    fixed = small["whole"] - small["megabytes"] / rate
    share = 1000 * arguments.target_gb / arguments.hosts
    print(
        f"bytes at {rate:.0f} MB/s per host, requests {fixed:.1f} s: {arguments.target_gb} GB on "
        f"{arguments.hosts} hosts take {fixed:.1f} + {share:.0f} / {rate:.0f} = "
        f"{fixed + share / rate:.1f} s"
    )


def _in_processes(arguments: argparse.Namespace, megabytes: int) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.faulty_bucket", str(port)]
    with (
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server,
    ):
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        address = f"http://localhost:{port}"
        environment = os.environ | {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(ROOT),
        }
        sizes = ["--one", "--megabytes", str(megabytes)]
        sizes += ["--latency-ms", str(arguments.latency_ms)]
        sizes += ["--stream-mbps", str(arguments.stream_mbps)]
        done = subprocess.run(
            [sys.executable, __file__, *sizes], env=environment, stdout=subprocess.PIPE, text=True
        )
        server.kill()
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
