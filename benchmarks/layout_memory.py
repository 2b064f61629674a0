"""`prepare` on one text in many layouts: processor seconds, peak memory and fingerprint.

    python -m benchmarks.layout_memory TEXT [--layouts text jsonl csv.gz ...]

TEXT is plain, its documents separated by blank lines, and may be packed. Each layout, those of
`tests/data/formats/test_layouts.py` and packed ones, is read, encoded and written in a fresh
process, with one worker. The vocabulary is by default that of $BERT_JAX_SHARED (else ../shared).

The process's own memory is what no other process can share, and the system cannot drop: without
the code of libraries, which is mapped from their files once for all processes.
"""

import argparse
import multiprocessing
import os
import re
import tempfile
import threading
import time
from pathlib import Path

_OF_MANY_FILES = ("files", "wrapped")
_ONE_BYTE = ("windows",)


def _memory(kind: str) -> int:
    """Returns a figure of this process in KiB, as the system has it."""
    (found,) = re.findall(rf"{kind}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found)


def _prepare(source: str, options: dict[str, str], tokenizer: str) -> tuple[str, float, int, int]:
    """Returns fingerprint, seconds, and the peaks of resident memory and of its own in KiB."""
    from bert_jax.data.corpus.prepare import prepare

    own, is_over = 0, threading.Event()

    def watch() -> None:
        nonlocal own
        while not is_over.wait(0.01):
            own = max(own, _memory("RssAnon"))

    watching = threading.Thread(target=watch)
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        watching.start()
        corpus = prepare([source], Path(folder, "c"), tokenizer=tokenizer, workers=1, **options)  # pyright: ignore
        seconds = time.process_time() - began
        is_over.set()
        watching.join()
        # The one of getrusage begins with that of the process that began this one.
        return corpus.fingerprint, seconds, _memory("VmHWM"), own


def main() -> None:
    # Here, so that the processes which prepare import the library of their own layout alone.
    from bert_jax.data.sources.read import read_documents
    from tests.data.formats.test_layouts import LAYOUTS
    from tests.data.sources.test_address import PACKERS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", metavar="TEXT")
    whole = [name for name in LAYOUTS if name not in (*_OF_MANY_FILES, *_ONE_BYTE)]
    packed = [f"{name}{ending}" for name in ("text", "jsonl", "csv") for ending in PACKERS]
    parser.add_argument("--layouts", nargs="+", default=[*whole, *packed])
    shared = Path(os.environ.get("BERT_JAX_SHARED", "../shared"), "data")
    parser.add_argument("--tokenizer", default=shared / "vocab/bert-base-uncased-vocab.txt")
    options = parser.parse_args()
    texts = ["\n".join(document) for document in read_documents([options.text])]
    print("| layout | MB | CPU s | peak MiB | of text's | its own MiB | of text's | fingerprint |")
    print("|---|---|---|---|---|---|---|---|")
    plain = plain_own = 0
    for layout in options.layouts:
        kind, ending = os.path.splitext(layout)
        name, reading, write = LAYOUTS[kind]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, name)
            write(file, texts)
            if ending:
                data = PACKERS[ending](file.read_bytes())
                file.unlink()
                file = Path(f"{file}{ending}")
                file.write_bytes(data)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                made = (str(file), reading, str(options.tokenizer))
                fingerprint, seconds, peak, own = pool.apply(_prepare, made)
            size = file.stat().st_size / 1e6
        plain, plain_own = plain or peak, plain_own or own
        print(
            f"| {layout} | {size:.1f} | {seconds:.1f} | {peak / 1024:.0f} | {peak / plain:.2f} "
            f"| {own / 1024:.0f} | {own / plain_own:.2f} | {fingerprint[:12]} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
