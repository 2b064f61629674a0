"""Words seen as a clock of pre-training: a function of the corpus and the config.

Words are counted by white space, as `prepare` counts them. An epoch sees all words of the training
split, so the words seen at a step follow from its epochs.
"""

import bisect

from bert_jax.config import TrainConfig
from bert_jax.data.corpus.store import Corpus
from bert_jax.data.pretraining.pipeline import Pipeline

# A number of words that the last step misses by less than this share is reached at the last step:
# ten epochs of a corpus of ten million words are rarely 100 million words exactly.
_MISSED = 0.01


def words_seen(pipeline: Pipeline, corpus: Corpus, step: int) -> int:
    """Returns the words in the batches before `step`, repeats included."""
    seen = 0.0
    for name, epochs in pipeline.epochs(step).items():
        manifest = corpus.sources.get(name, corpus).manifest
        seen += epochs * manifest["counts"]["train"]["words"]
    return round(seen)


def steps_at_words(config: TrainConfig, pipeline: Pipeline, corpus: Corpus) -> dict[int, int]:
    """Returns the step of each number of words in `checkpoint.at_words` that the run reaches."""
    steps, found = range(config.total_steps + 1), {}
    for words in sorted({*config.checkpoint.at_words}):
        step = bisect.bisect_left(steps, words, key=lambda s: words_seen(pipeline, corpus, s))
        if step in steps:
            found[words] = step
        elif words * (1 - _MISSED) <= words_seen(pipeline, corpus, steps[-1]):
            found[words] = steps[-1]
    return found
