"""`prepare` on one text in many layouts: processor seconds, peak memory and fingerprint.

    python -m benchmarks.layout_memory TEXT [--layouts text jsonl csv.gz ...]

TEXT is plain, its documents separated by blank lines, and may be packed. Each layout, those of
`tests/data/formats/test_layouts.py` and packed ones, is read, encoded and written in a fresh
process, with one worker. The vocabulary is by default that of $BERT_JAX_SHARED (else ../shared).
"""

import argparse
import multiprocessing
import os
import re
import tempfile
import time
from pathlib import Path

_OF_MANY_FILES = ("files", "wrapped")
_ONE_BYTE = ("windows",)


def _prepare(source: str, options: dict[str, str], tokenizer: str) -> tuple[str, float, int]:
    """Returns fingerprint, seconds and the peak of resident memory in KiB."""
    from bert_jax.data.corpus.prepare import prepare

    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        corpus = prepare([source], Path(folder, "c"), tokenizer=tokenizer, workers=1, **options)  # pyright: ignore
        seconds = time.process_time() - began
        # The one of getrusage begins with that of the process that began this one.
        (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return corpus.fingerprint, seconds, int(peak)


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
    print("| layout | MB | CPU s | peak MiB | of text's | fingerprint |\n|---|---|---|---|---|---|")
    plain = 0
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
                fingerprint, seconds, peak = pool.apply(_prepare, made)
            size = file.stat().st_size / 1e6
        plain = plain or peak
        print(
            f"| {layout} | {size:.1f} | {seconds:.1f} | {peak / 1024:.0f} | {peak / plain:.2f} "
            f"| {fingerprint[:12]} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
