"""Show the sizes and the tokenizer of a corpus.

'show' prints the table that prepare has printed.

example:
  bert-jax corpus show runs/corpus
"""

import json
from pathlib import Path
from typing import Literal

from bert_jax.cli.options import Positional, Verb
from bert_jax.config.fields import REQUIRED, section, setting


@section
class ShowCorpusOptions(Verb):
    what: Positional[Literal["show"]] = setting(REQUIRED, "ACTION: show")
    corpus: Positional[Path] = setting(REQUIRED, "CORPUS: a directory of bert-jax prepare")
    json: bool = setting(False, "print the manifest, corpus.json, in place of the table")


def run(options: ShowCorpusOptions) -> None:
    from bert_jax.cli.training.prepare import print_corpus
    from bert_jax.data.corpus.store import open_corpus

    corpus = open_corpus(options.corpus)
    if options.json:
        print(json.dumps(corpus.manifest))
    else:
        print_corpus(options.corpus, corpus.manifest)
