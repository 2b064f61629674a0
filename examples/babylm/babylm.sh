#!/bin/sh
# A BabyLM entry from text to scores: `make babylm`. docs/guides/babylm.md has the settings.
# Interrupt it at any point and run it again: each step continues where it stopped.
set -euf

here=$(cd "$(dirname "$0")" && pwd)
runs=${1:-runs/babylm}
PATH=${BIN:+$BIN:}$PATH
words=${BABYLM_WORDS:-10000000}
config=${BABYLM_CONFIG:-babylm_small_cpu}

[ -f "$runs/text/sources.json" ] || {
    mkdir -p "$runs"
    python "$here/corpus.py" "${BABYLM_SOURCES:-docs:}" ${BABYLM_TEXTS:+--texts "$BABYLM_TEXTS"} \
        --words "$words" --output-dir "$runs/text"
}
[ -f "$runs/corpus/corpus.json" ] ||
    bert-jax prepare --source "$runs/text/train" --validation-source "$runs/text/validation" \
        --vocab-size "${BABYLM_VOCAB:-8192}" --output-dir "$runs/corpus"

# A tenth of the words per checkpoint: a million each, for ten million.
# shellcheck disable=SC2086  # BABYLM_SET is a list
settings=$(python "$here/settings.py" "$config" ${BABYLM_SET:-} --corpus "$runs/corpus" \
    --unit $((words / 10)) --epochs "${BABYLM_EPOCHS:-10}")
set --
for setting in $settings ${BABYLM_SET:-}; do
    set -- "$@" --set "$setting"
done
bert-jax pretrain "$config" --corpus "$runs/corpus" --workdir "$runs/workdir" "$@"
python "$here/export.py" "$runs/workdir" --output-dir "$runs/exports"

[ -f "$runs/scores.json" ] ||
    bert-jax probe "$runs/workdir" --probe minimal_pairs ${BABYLM_PAIRS:+--pairs "$BABYLM_PAIRS"} \
        --output-file "$runs/scores.json"
