"""Compares `prepare` on this machine with the same by Apache Beam, in turns, over sizes of text.

    python benchmarks/prepare_beam.py FOLDER VOCABULARY [--files 2 6 24] [--turns 2]

FOLDER has files of about one size, of which the first N are taken. Needs bert-jax[beam]. A line has
the processor seconds of all processes, the seconds, and the peak memory of the largest process.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

BEAM = ("--runner", "DirectRunner")
PROCESSES = ("--", "--direct_running_mode=multi_processing", "--direct_num_workers=2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("vocabulary")
    parser.add_argument("--files", type=int, nargs="+", default=[2, 6, 24])
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    everything = sorted(arguments.folder.iterdir())
    print("files  turn  by        CPU s     s   peak MB  fingerprint")
    for count in arguments.files:
        taken: dict[str, list[float]] = {"here": [], "beam": []}
        fingerprints = set()
        for turn in range(arguments.turns):
            for by in taken:
                cpu, wall, peak, fingerprint = prepared(
                    everything[:count], arguments.vocabulary, by_beam=by == "beam"
                )
                taken[by].append(cpu)
                fingerprints.add(fingerprint)
                print(
                    f"{count:5}  {turn:4}  {by}  {cpu:10.1f} {wall:5.1f} {peak:9.0f}  {fingerprint}"
                )
        ratio = statistics.median(taken["beam"]) / statistics.median(taken["here"])
        print(f"{count:5}  beam / here {ratio:.2f}; equal: {len(fingerprints) == 1}", flush=True)


def prepared(
    files: list[Path], vocabulary: str, *, by_beam: bool
) -> tuple[float, float, float, str]:
    """Returns processor seconds, seconds, megabytes and the fingerprint."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "corpus")
        words = [sys.executable, "-m", "bert_jax", "prepare", "--output", str(output)]
        words += ["--tokenizer", vocabulary]
        words += [word for file in files for word in ("--source", str(file))]
        words += [*BEAM, *PROCESSES] if by_beam else ["--workers", "2"]
        began = time.monotonic()
        quiet = os.open(os.devnull, os.O_WRONLY)
        process = os.posix_spawn(
            words[0],
            words,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, quiet, 1), (os.POSIX_SPAWN_DUP2, quiet, 2)],
        )
        _, status, usage = os.wait4(process, 0)
        os.close(quiet)
        wall = time.monotonic() - began
        if status:
            raise SystemExit(f"prepare ended with {status}")
        fingerprint = json.loads((output / "corpus.json").read_text())["fingerprint"][:12]
        return usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, fingerprint


if __name__ == "__main__":
    main()
