"""Export all checkpoints of `checkpoint.at_words` under the names of BabyLM's table.

    python examples/babylm/export.py runs/babylm/workdir --output-dir runs/babylm/exports

Writes a Hugging Face directory for each: chck_1M, ..., chck_100M. Directories that exist are kept,
so the same command continues after an interruption, and after more training.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from bert_jax.data.corpus.several import open_corpora
from bert_jax.errors import BertJaxError
from bert_jax.pretrained.export import export_checkpoint
from bert_jax.pretrained.load import run_config
from bert_jax.training.pretrain import pipeline_of
from bert_jax.training.words_seen import steps_at_words
from bert_jax.workdir import checkpoint, run_directory


def name_of(words: int) -> str:
    millions, rest = divmod(words, 1_000_000)
    return f"chck_{words}" if rest else f"chck_{millions}M"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--corpus", type=Path, help="default: the corpus of the run")
    parser.add_argument("--license", help="license of the model, for its card")
    parser.add_argument("--output-dir", type=Path, required=True)
    options = parser.parse_args()

    config = run_config(options.workdir)
    if config is None:
        parser.error(f"{options.workdir} is not the directory of a run")
    corpus = open_corpora(options.corpus or run_directory.corpus_of(options.workdir))
    pipeline = pipeline_of(config, corpus)
    there = checkpoint.steps(options.workdir)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    for words, step in steps_at_words(config, pipeline, corpus).items():
        target = options.output_dir / name_of(words)
        if target.exists():
            continue
        if step not in there:
            print(f"{target.name}: step {step:,} is not there yet")
            continue
        part = options.output_dir / f".{target.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        source = options.workdir / checkpoint.DIRECTORY / str(step)
        export_checkpoint(source, part, to="hf", license=options.license)
        os.replace(part, target)
        print(f"wrote {target} (step {step:,})")


if __name__ == "__main__":
    try:
        main()
    except BertJaxError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
