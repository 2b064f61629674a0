"""Searches the paragraphs of any text with models and with BM25, and prints the best of each.

    python examples/search.py docs: --model runs/first --model runs/embedder "how to sort a list"

The text is any source of `bert-jax prepare`. A model is a run or a directory. BM25 needs the
package bm25s (`pip install -e '.[retrieval]'`); without it, only the models are compared.
"""

import argparse
import importlib.util
import sys

from bert_jax.data.sources.read import read_documents
from bert_jax.errors import BertJaxError, install_command
from bert_jax.inference.retrieve import bm25_search, search, text_vectors
from bert_jax.interchange.sentence_transformers import DOCUMENT_PROMPTS, QUERY_PROMPTS
from bert_jax.pretrained.load import load_checkpoint

# Words of a paragraph: a shorter one is mostly a heading.
_LEAST_WORDS, _SHOWN_WORDS = 8, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", help="a file, a folder, a glob, or docs:")
    parser.add_argument("queries", nargs="+", metavar="QUERY")
    parser.add_argument("--model", action="append", default=[], help="a run or a directory")
    parser.add_argument("--top", type=int, default=1, help="paragraphs per query (default: 1)")
    parser.add_argument("--length", type=int, default=64, help="tokens per text (default: 64)")
    arguments = parser.parse_args()

    paragraphs = {text for document in read_documents([arguments.source]) for text in document}
    passages = sorted(text for text in paragraphs if len(text.split()) >= _LEAST_WORDS)
    print(f"{len(passages):,} paragraphs")
    found = {}
    if importlib.util.find_spec("bm25s"):
        found["BM25"] = bm25_search(arguments.queries, passages, arguments.top)
    else:
        print(f"for BM25: {install_command('bm25s')}", file=sys.stderr)
    for place in arguments.model:
        model = load_checkpoint(place, allow_missing_heads=True)
        queries, vectors = text_vectors(
            model,
            (arguments.queries, QUERY_PROMPTS),
            (passages, DOCUMENT_PROMPTS),
            length=arguments.length,
        )
        found[place], _ = search(queries, vectors, arguments.top, mesh=model.mesh)
    for number, query in enumerate(arguments.queries):
        print(f"\n{query}")
        for name, rows in found.items():
            for row in rows[number]:
                words = passages[row].split()
                text = " ".join(words[:_SHOWN_WORDS]) + " ..." * (len(words) > _SHOWN_WORDS)
                print(f"  {name}: {text}")


if __name__ == "__main__":
    try:
        main()
    except BertJaxError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
