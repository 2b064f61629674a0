#!/bin/sh
# The main job from end to end, on text that every machine has: `make demo`.
# Interrupt it at any point and run it again: each step resumes where it stopped.
set -eu

runs=${1:-runs/demo}
PATH=${BIN:+$BIN:}$PATH

# A complete corpus is kept: packages that were installed later, for example by `make test`, change the text.
[ -f "$runs/corpus/corpus.json" ] ||
    bert-jax prepare --source docs: --output-dir "$runs/corpus" --vocab-size 8192 --validation-fraction 0.05
bert-jax pretrain modern_tiny_cpu --corpus "$runs/corpus" --workdir "$runs/workdir"
rm -rf "$runs/export"
bert-jax export "$runs/workdir" --format hf --output-dir "$runs/export"
bert-jax fill-mask "$runs/export" --top 3 \
    "The default value is [MASK]." \
    "The array must have the same [MASK] as the input."

# A report of the run and its attention: two self-contained pages to open in a browser.
bert-jax report "$runs/workdir" --html "$runs/report.html" >"$runs/report.txt"
bert-jax attention "$runs/export" --html "$runs/attention.html" \
    "The array must have the same shape as the input."

cat <<END
Open $runs/report.html and $runs/attention.html in a browser. Next:
  bert-jax fill-mask $runs/export "Your sentence with a [MASK]."
  bert-jax prepare --source YOUR_TEXT --output-dir runs/corpus
  bert-jax doctor modern_small_cpu --corpus runs/corpus --workdir runs/mine
END
