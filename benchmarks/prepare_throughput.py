"""Compares `prepare` with one `encode_batch` call of `tokenizers` on the same sentences.

    python benchmarks/prepare_throughput.py [--source FILE] [--tokenizer FILE] [--workers N]

Ours reads and decompresses the text, drops duplicates, splits sentences, encodes and writes;
`tokenizers` has all sentences in memory and encodes. Both use the same cores, one after the other,
in new processes. Prints both in tokens per second, the ratio, and the peak memory of our process
tree. Text and vocabulary are by default those in $BERT_JAX_SHARED (else ../shared).
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil


def ours(source: str, tokenizer: str, workers: int) -> tuple[int, float, float, float]:
    """Returns (tokens, seconds, processor seconds, seconds of process 0) of `prepare`, from
    the sources to a corpus that was opened and checked.
    """
    from bert_jax.data.corpus.prepare import prepare

    with tempfile.TemporaryDirectory() as folder:
        started, begun = time.perf_counter(), os.times()
        corpus = prepare([source], Path(folder, "corpus"), tokenizer=tokenizer, workers=workers)
        seconds, ended = time.perf_counter() - started, os.times()
        own = ended.user + ended.system - begun.user - begun.system
        all_ = own + ended.children_user + ended.children_system
        return corpus.manifest["counts"]["total"]["tokens"], seconds, all_, own


def theirs(source: str, tokenizer: str, call: str) -> tuple[int, float]:
    """Returns (tokens, seconds) of one call of `tokenizers` on every sentence of the sources."""
    from bert_jax.data.language.sentences import sentences_of
    from bert_jax.data.matching.identity import identify
    from bert_jax.data.sources.read import read_documents
    from bert_jax.data.tokenizer.tokenizer import load_tokenizer

    documents = {}
    for document in read_documents([source]):
        documents.setdefault(identify("\n".join(document).encode()).words, document)
    sentences = [
        piece.lstrip()
        for document in documents.values()
        for pieces in sentences_of("\n".join(document))
        for piece in pieces
    ]
    backend = load_tokenizer(tokenizer)._backend
    encode = getattr(backend, call)
    started = time.perf_counter()
    encodings = encode(sentences, add_special_tokens=False)
    seconds = time.perf_counter() - started
    return sum(map(len, encodings)), seconds


class PeakMemory:
    """Resident memory of all descendants of this process, sampled twenty times per second."""

    def __init__(self) -> None:
        self.sum = self.largest = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            sizes = []
            for process in psutil.Process().children(recursive=True):
                try:
                    sizes.append(process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            self.sum = max(self.sum, sum(sizes))
            self.largest = max(self.largest, *sizes, 0)


def main() -> None:
    shared = Path(os.environ.get("BERT_JAX_SHARED", "../shared"), "data")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", default=str(shared / "corpus/simplewiki.txt.gz"))
    parser.add_argument("--tokenizer", default=str(shared / "vocab/bert-base-uncased-vocab.txt"))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if not Path(arguments.source).exists():
        sys.exit(f"{arguments.source} does not exist: set --source, or BERT_JAX_SHARED")

    def in_fresh_process(function, *extra) -> tuple[int, float]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, (arguments.source, arguments.tokenizer, *extra))

    with PeakMemory() as memory:
        # Unlike processes of a Pool, it is not a daemon, because it starts processes.
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(
            target=_send, args=(sender, arguments.source, arguments.tokenizer, arguments.workers)
        )
        process.start()
        tokens, seconds, processor, own = receiver.recv()
        process.join()
    our_rate = tokens / seconds
    print(f"bert-jax prepare, {arguments.workers} workers: {tokens:,} tokens in {seconds:.1f} s,")
    print(f"  {our_rate:,.0f} tokens/s; peak memory {memory.sum / 2**20:,.0f} MiB in all,")
    print(f"  {memory.largest / 2**20:,.0f} MiB in the largest process;")
    print(
        f"  {processor:.1f} s of processor time, {own / processor:.1%} of it in the first process"
    )
    for call in ("encode_batch", "encode_batch_fast"):
        their_tokens, their_seconds = in_fresh_process(theirs, call)
        assert their_tokens == tokens, (their_tokens, tokens)
        their_rate = their_tokens / their_seconds
        print(f"tokenizers {call}: {their_tokens:,} tokens in {their_seconds:.1f} s,")
        print(f"  {their_rate:,.0f} tokens/s; prepare is {our_rate / their_rate:.2f} times as fast")


def _send(sender, source: str, tokenizer: str, workers: int) -> None:
    sender.send(ours(source, tokenizer, workers))


if __name__ == "__main__":
    main()
