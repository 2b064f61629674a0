#!/bin/sh
# Tests the installation within a minute, from text to a filled-in word, with a kill and a resume: `make smoke`.
#
#   smoke.sh [DIRECTORY]     keeps all output there; by default a temporary directory, which is only kept if a step fails
#
# BIN is the directory of the command bert-jax, if it is not on the PATH. SMOKE_CPU=1 does not use accelerators.
# Exit codes: 0 passed; 1 the named step failed; 2 wrong usage.
set -eu

here=$(cd "$(dirname "$0")" && pwd)/smoke
PATH=${BIN:+$BIN:}$PATH
[ "${SMOKE_CPU:-}" != 1 ] || export JAX_PLATFORMS=cpu

refuse() {
    echo "smoke: $1" >&2
    exit 2
}

case $# in
    0) ;;
    1) [ "$1" = "${1#-}" ] || refuse "usage: smoke.sh [DIRECTORY]" ;;
    *) refuse "usage: smoke.sh [DIRECTORY]" ;;
esac
command -v bert-jax >/dev/null || refuse "bert-jax is not on the PATH; set BIN to its directory"
if [ $# = 1 ]; then
    mkdir -p "$1"
    directory=$(cd "$1" && pwd) temporary=
    [ -z "$(ls -A "$directory")" ] || refuse "$directory is not empty; name an empty directory"
else
    directory=$(mktemp -d "${TMPDIR:-/tmp}/bert-jax-smoke.XXXXXX") temporary=yes
fi
corpus=$directory/corpus workdir=$directory/workdir export=$directory/export

# Later processes reuse compiled programs. By default JAX only caches programs that took a second to compile.
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$directory/compiled}"
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

step='' child=''

leave() {
    code=$?
    trap - EXIT
    if [ "$child" ]; then
        kill -9 "$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    fi
    [ "$code" -lt 128 ] || echo "smoke: interrupted at $step; $directory is kept" >&2
    if [ "$code" = 0 ] && [ "$temporary" ]; then rm -rf "$directory"; fi
    exit "$code"
}
trap leave EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

fail() { # REASON
    tail -n 5 "$log" >&2
    echo "smoke: failed at $step: $1; see $log" >&2
    exit 1
}

# In the background, because a shell that waits for a foreground command does not handle signals.
begin() { # STEP VERB ARGUMENT...
    step=$1 log=$directory/$1.log since=$(date +%s)
    shift
    bert-jax "$@" >"$log" 2>&1 </dev/null &
    child=$!
}

finish() {
    code=0
    wait "$child" || code=$?
    child=''
    [ "$code" = 0 ] || fail "bert-jax ended with exit code $code"
}

passed() { # WHAT CAME OUT
    echo "smoke: $step: $1 ($(($(date +%s) - since)) s)"
}

last_step() { # FILE WORD: the step in the last line with the word
    sed -n "/$2/s/.*\"step\": \([0-9]*\).*/\1/p" "$1" 2>/dev/null | tail -n 1
}

number() { # FILE NAME
    sed -n "s/^ *\"$2\": \([-+.0-9e]*\),*\$/\1/p" "$1"
}

still_runs() {
    kill -0 "$child" 2>/dev/null || { finish && fail "it finished before it could be killed"; }
}

began=$(date +%s)
echo "smoke: all output is in $directory"

begin prepare prepare --source "$here" --output-dir "$corpus" --vocab-size 192 --validation-fraction 0.2 --workers 1
finish
passed "$(number "$corpus/corpus.json" unigram_entropy_nats | cut -c 1-5) nats per token, without context"

begin doctor doctor "$here/config.py" --corpus "$corpus" --workdir "$workdir"
finish
passed "$(tail -n 1 "$log")"

begin pretrain pretrain "$here/config.py" --corpus "$corpus" --workdir "$workdir"
until [ -s "$workdir/metrics.jsonl" ]; do
    still_runs
    sleep 0.1
done
saved=''
until [ "$saved" ] && [ "$(last_step "$workdir/metrics.jsonl" loss)" -gt "$saved" ]; do
    still_runs
    sleep 0.02
    saved=$(last_step "$workdir/events.jsonl" '"save"')
done
kill -9 "$child"
code=0
wait "$child" 2>/dev/null || code=$?
child=''
[ "$code" = 137 ] || fail "it finished with exit code $code before it could be killed"
passed "killed at step $(last_step "$workdir/metrics.jsonl" loss)"

begin resume pretrain "$here/config.py" --corpus "$corpus" --workdir "$workdir"
finish
resumed=$(last_step "$workdir/events.jsonl" '"resume"')
[ "${resumed:-0}" -gt 0 ] || fail "it started from the beginning instead of a checkpoint"
passed "from step $resumed to $(last_step "$workdir/metrics.jsonl" loss)"

begin evaluate evaluate --json "$workdir" --corpus "$corpus"
finish
loss=$(number "$log" mlm_loss) entropy=$(number "$corpus/corpus.json" unigram_entropy_nats)
awk "BEGIN { exit !(\"$loss\" != \"\" && \"$entropy\" != \"\" && $loss + 0 < $entropy + 0) }" ||
    fail "the held-out loss, ${loss:-none}, is not below the unigram entropy, ${entropy:-none}"
passed "held-out loss $(echo "$loss" | cut -c 1-5) nats"

begin export export "$workdir" --format hf --output-dir "$export"
finish
passed "$(du -k "$export" | tail -n 1 | cut -f 1) kB"

begin fill-mask fill-mask "$export" --top 3 \
    "The bear eats [MASK] in the forest." "The baker makes [MASK] in the bakery."
finish
# A row is │ 0.958 │ honey │ ...; take the first of the three rows of each text.
words=$(awk '$2 ~ /^[01]\.[0-9]+$/ && number++ % 3 == 0 { printf "%s%s", space, $4; space = " " }' "$log")
[ "$words" = "honey bread" ] || fail "its first words are '$words', not 'honey bread'"
passed "$words"

echo "smoke: passed in $(($(date +%s) - began)) s"
