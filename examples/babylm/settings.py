"""Print the settings of a run of so many epochs over a corpus, one FIELD=VALUE per line.

    python examples/babylm/settings.py babylm_small_cpu --corpus runs/babylm/corpus --epochs 10

The number of steps is the largest one that sees at most --epochs epochs of the words of the corpus.
Checkpoints are kept after 1, 2, ..., 10, 20, ..., 100 times --unit words.
"""

import argparse
import sys
from pathlib import Path

from bert_jax.config_loader import load_config
from bert_jax.data.corpus.several import open_corpora
from bert_jax.errors import BertJaxError
from bert_jax.training.pretrain import pipeline_of

_MARKS = (*range(1, 10), *range(10, 101, 10))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", help="name or file of a config with one phase")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--unit", type=int, default=1_000_000, help="words")
    parser.add_argument("settings", nargs="*", help="FIELD=VALUE: changes of the config")
    options = parser.parse_args()

    config = load_config(options.config, options.settings)
    pipeline = pipeline_of(config, open_corpora(options.corpus))
    steps = max(1, int(options.epochs / pipeline.epochs(1)[""]))
    print(f"phases.0.steps={steps}")
    print(f"optimizer.warmup_steps={steps // 25}")
    print(f"evaluation.every_steps={max(1, steps // 20)}")
    print(f"checkpoint.at_words=[{','.join(str(mark * options.unit) for mark in _MARKS)}]")


if __name__ == "__main__":
    try:
        main()
    except BertJaxError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
