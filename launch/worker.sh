#!/usr/bin/env bash
# What launch/tpu runs on a TPU host, and what runs the trainer there, as a systemd unit: a host that shuts down stops
# its units, so the trainer gets SIGTERM, saves, and exits with 42.
#
#   worker.sh stage gs://BUCKET/CORPUS DIRECTORY    copy a corpus to local disk, and check it
#   worker.sh copy gs://BUCKET/MODEL DIRECTORY      copy anything else there
#   worker.sh mount                                 make the data disk readable at /mnt/bert-jax
#   worker.sh start RUN ARGUMENT...                 start `bert-jax pretrain ARGUMENT...`, unless it runs, or
#                                                   `bert-jax doctor ARGUMENT...` finds that it would fail
#   worker.sh cap FILE                              make that text what ends the costs of this host (launch/boot.sh)
#   worker.sh state RUN                             running, the exit code, none, or other (another run is running)
#   worker.sh stop                                  SIGTERM, and wait
#   worker.sh logs LINES, worker.sh follow LINES
#   worker.sh since LINE                            what the log has had since; the last line is "@bert-jax-at LINE"
#   worker.sh train                                 the unit's own command
set -Eeuo pipefail

UNIT=bert-jax
PLACE=${BERT_JAX_HOME:-$HOME/bert-jax}
[[ $PLACE == /* ]] || PLACE=$HOME/$PLACE
LOG=$PLACE/log/train.log
# Together with it in one file, on GKE.
# shellcheck source=launch/lib/outside.sh
declare -F whole >/dev/null || source "$(dirname "${BASH_SOURCE[0]}")/lib/outside.sh"

say() { printf '%s: %s\n' "$(hostname)" "$*"; }

as_root() { if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi; }

# Also while it is being stopped: it may be saving.
running() { [[ $(systemctl is-active "$UNIT") =~ ^(active|activating|reloading|deactivating)$ ]]; }

run_of() { # the run that was started last
    [[ ! -f $PLACE/run ]] || cat "$PLACE/run"
}

state() { # RUN
    if [[ $(run_of) != "$1" ]]; then
        if running; then echo other; else echo none; fi
    elif running; then
        echo running
    else
        # It was started, runs no longer and left no code: the host was reset, or it was killed.
        cat "$PLACE/exit" 2>/dev/null || echo 137
    fi
}

# A systemd unit for this script's VERB; mixed: SIGTERM goes to this script alone, which hands it on once.
unit() { # NAME VERB OPTION...
    # shellcheck source=launch/lib/unit.sh
    source "$PLACE/src/launch/lib/unit.sh"
    as_root systemctl reset-failed "$1" 2>/dev/null || true
    as_root systemd-run --unit="$1" --uid="$(id -u)" --gid="$(id -g)" --working-directory="$PLACE" \
        --property=KillMode=mixed --property=TimeoutStopSec="${STOP_SECONDS:-300}" "${UNIT_PROPERTIES[@]}" "${@:3}" \
        --setenv=HOME="$HOME" --setenv=BERT_JAX_HOME="$PLACE" --setenv=PATH="$PATH" \
        /bin/bash "$PLACE/src/launch/worker.sh" "$2"
}

# Writes down variables, for a unit to read.
keep() { # VARIABLE...
    local name
    for name in "$@"; do
        [[ ! ${!name:-} ]] || printf 'export %s=%q\n' "$name" "${!name}"
    done
}

# What only the trainer is to see (SECRETS of launch/tpu): lines of NAME=value, which nothing executes or prints.
secrets() {
    local name value
    [[ -f $PLACE/src/run/secrets.env ]] || return 0
    while IFS='=' read -r name value || [[ $name ]]; do
        [[ ! $name =~ ^[A-Z][A-Z0-9_]*$ ]] || export "$name=$value"
    done <"$PLACE/src/run/secrets.env"
}

start() { # RUN ARGUMENT...
    local run=$1 name code=0
    shift
    if running; then
        if [[ $(run_of) != "$run" ]]; then
            say "another run is running"
            return 3
        fi
        say "is running already"
        return
    fi
    mkdir -p "$PLACE/log"
    rm -f "$PLACE/exit"
    rm -f "$PLACE/run.env"
    (umask 077 && : >"$PLACE/run.env") # for nobody else to read
    {
        # Worker I of N: for trainers that are given their number. Cloud TPU's host names end in -w-I.
        name=$(hostname)
        ARGUMENTS=("${@//%i/"${TPU_WORKER_ID:-${name##*-w-}}"}")
        declare -p ARGUMENTS
        # The launcher's choices, and what it should know of the host.
        keep LIBTPU_INIT_ARGS JAX_COMPILATION_CACHE_DIR BERT_JAX_HOME WORKDIR
    } >"$PLACE/run.env"
    echo "$run" >"$PLACE/run"
    check_host || code=$?
    if [[ $(run_of) != "$run" ]]; then
        say "was told to stop before it began"
        return 1
    fi
    ((code == 0)) || return "$code"
    unit "$UNIT" train
    say "started"
}

# Asks `bert-jax doctor` on every host, before anything is trained. What it finds to fail is kept as the exit code of the
# run, as if that had ended with it. A doctor that is ill itself, or slow, stops nothing.
check_host() {
    local code=0
    [[ ${DOCTOR:-1} != 0 ]] || return 0
    echo "== $(date '+%F %T') $(hostname): doctor" >>"$LOG"
    (
        # shellcheck source=/dev/null
        source "$PLACE/run.env"
        trainer_environment
        cd "$PLACE"
        timeout "${DOCTOR_SECONDS:-600}" "$PLACE/venv/bin/python" -m bert_jax doctor "${ARGUMENTS[@]}"
    ) >>"$LOG" 2>&1 </dev/null || code=$?
    case $code in
        0) ;;
        [2-8])
            echo "$code" >"$PLACE/exit"
            say "not started: bert-jax doctor found what a run would end with, code $code; launch/tpu logs has it"
            return "$code"
            ;;
        *) say "bert-jax doctor itself ended with code $code: going on without it" ;;
    esac
}

trainer_environment() {
    # JAX's own choice, 8482, is closed in the firewall rule that Google makes for TPU networks.
    export JAX_COORDINATOR_PORT=${JAX_COORDINATOR_PORT:-8476}
    # A read from a bucket that stalls is given up and tried again.
    export TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS=60 TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES=1024
    export TPU_MIN_LOG_LEVEL=${TPU_MIN_LOG_LEVEL:-2} PYTHONUNBUFFERED=1
    ulimit -c 0
    ulimit -n 100000 2>/dev/null || true
}

train() {
    local child='' signs='' stopping='' code
    trap 'stopping=1; [[ ! $child ]] || kill -TERM "$child" 2>/dev/null || true' TERM INT
    # shellcheck source=/dev/null
    source "$PLACE/run.env"
    trainer_environment
    secrets
    echo "== $(date '+%F %T') $(hostname): checkout $(cat "$PLACE/src/run/checkout" 2>/dev/null): pretrain ${ARGUMENTS[*]}" >>"$LOG"
    signs &
    signs=$!
    "$PLACE/venv/bin/python" -m bert_jax pretrain "${ARGUMENTS[@]}" >>"$LOG" 2>&1 </dev/null &
    child=$!
    [[ ! $stopping ]] || kill -TERM "$child"
    # A signal ends `wait` before the child has ended; the last `wait` has the child's own code.
    while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done
    code=0
    wait "$child" || code=$?
    echo "== $(date '+%F %T') $(hostname): exit code $code" >>"$LOG"
    echo "$code" >"$PLACE/exit.new"
    mv "$PLACE/exit.new" "$PLACE/exit"
    kill "$signs" 2>/dev/null || true
    keep_log
    # Whoever gives the same command tomorrow is to make no machine for it.
    ((code)) || ! is_first || note "$(run_of)" launched_and_done || true
    exit "$code"
}

# The machine may be gone tomorrow. In a directory, only beside a run: another file would make it no free workdir.
keep_log() {
    local name
    name=$(hostname).log
    if [[ ${WORKDIR:-} == gs://* ]]; then
        timeout "${LOG_SECONDS:-20}" gcloud --quiet storage cp "$LOG" "$WORKDIR/logs/$name" </dev/null >/dev/null 2>&1 ||
            echo "== the log could not be copied to $WORKDIR/logs" >>"$LOG"
    elif [[ ${WORKDIR:-} && -f $WORKDIR/config.json ]]; then
        mkdir -p "$WORKDIR/logs" && cp "$LOG" "$WORKDIR/logs/$name" || true
    fi
}

# --- what the workdir is told ----------------------------------------------------------------------

is_first() { [[ ${WORKDIR:-} == gs://* && $(hostname) == *-w-0 ]]; }

# Every few minutes, while it trains: the log, in case that the host is lost, and how long the run has had machines, by the
# account of launch/boot.sh, so that its hours are those of all its machines together.
signs() {
    local total never
    exec {never}<> <(:) # a pipe that says nothing: a pause that no other process makes
    while :; do
        if is_first && read -r _ _ total _ 2>/dev/null <"${CAP_AT:-/var/lib/bert-jax}/account" && total=$(whole "$total"); then
            note "$(run_of) $((total / 60)) $(date +%FT%T.%N)" launched_alive || true
        fi
        read -r -t "${ALIVE_SECONDS:-240}" -u "$never" || true
        [[ ${WORKDIR:-} != gs://* ]] || keep_log
    done
}

tell() { echo "== $(date '+%F %T') $(hostname): $*" >>"$LOG"; }

note() { # TEXT NAME: an object of the workdir
    echo "$1" >"$PLACE/$2"
    timeout 60 gcloud --quiet storage cp "$PLACE/$2" "$WORKDIR/$2" </dev/null >/dev/null 2>"$PLACE/note.err" ||
        { tell "cannot write $WORKDIR/$2: $(tail -n 1 "$PLACE/note.err")" && return 1; }
}

# What ends the costs of this host, put in place or told anew. On worker 0 it is said if this account may not even see its
# TPU, much less delete it.
cap() { # FILE
    local code
    as_root bash "$1" again
    [[ $(hostname) == *-w-0 ]] || return 0
    code=$(as_root bash "$1" may)
    [[ $code != 40[13] ]] || say "warning: this TPU's service account may not delete it (HTTP $code): docs/launch.md has the role"
}

since() { # LINE, or - for the last ones
    local lines from
    lines=$(wc -l 2>/dev/null <"$LOG") || return 0
    if ! from=$(whole "$1") || ((from > lines)); then from=$((lines - 20)); fi
    ((lines - from <= 1000)) || from=$((lines - 1000)) # what one look can take
    ((from > 0)) || from=0
    ((from == lines)) || sed -n "$((from + 1)),${lines}p" "$LOG"
    echo "@bert-jax-at $lines"
}

# --- files -----------------------------------------------------------------------------------------

stop() {
    if running; then
        as_root systemctl stop "$UNIT"
        say "stopped, exit code $(cat "$PLACE/exit" 2>/dev/null || echo none)"
    else
        # One that has not begun yet, since its doctor is at work, does not begin.
        [[ -f $PLACE/exit ]] || rm -f "$PLACE/run"
        say "nothing runs"
    fi
}

# Compares a directory with a manifest: prints what is missing or has another size, or how many bytes are still to come
# and there is no room for.
check_corpus() { # DIRECTORY MANIFEST
    python3 - "$1" "$2" <<'PYTHON'
import json, pathlib, shutil, sys
directory = pathlib.Path(sys.argv[1])
try:
    manifest = json.loads(pathlib.Path(sys.argv[2]).read_bytes())
    outside = [n for n in manifest["files"] if n[:1] == "/" or ".." in n.split("/") or not n.isprintable()]
    assert all(type(entry["bytes"]) is int and entry["bytes"] >= 0 for entry in manifest["files"].values())
except (ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError) as error:
    sys.exit("corpus.json is not one that bert-jax prepare writes")
if outside:
    sys.exit(f"corpus.json names a file outside of its folder: {outside[0][:100]!r}")
sizes = {n: (directory / n).stat().st_size if (directory / n).is_file() else None for n in manifest["files"]}
wrong = [n for n, entry in manifest["files"].items() if sizes[n] != entry["bytes"]]
room = shutil.disk_usage(directory).free
needed = sum(manifest["files"][n]["bytes"] - (sizes[n] or 0) for n in wrong)
if needed > room:
    sys.exit(f"no room: {needed:,} bytes are to come and {room:,} are free in {directory}")
if not (directory / "tokenizer").is_dir():
    wrong.append("tokenizer/")
if wrong:
    sys.exit(f"incomplete: {len(wrong)} of {len(sizes)} files, {wrong[0]} among them")
PYTHON
}

# The first disk beside the boot disk, to read: several hosts have it together. One with partitions is mounted by its first.
mount_disk() { # not `mount`: as root, that would be called instead of the program
    local at=${DATA_DISK_AT:-/mnt/bert-jax} boot disk
    if mountpoint -q "$at"; then
        say "$at is mounted already"
        return
    fi
    boot=$(lsblk -no PKNAME "$(findmnt -nvo SOURCE /)")
    disk=$(lsblk -lnpo NAME,TYPE,FSTYPE,PKNAME | awk -v boot="$boot" '
        index($1, "/dev/" boot) != 1 && ($2 == "disk" || $2 == "part") && $3 != "" { print $1; exit }')
    [[ $disk ]] || {
        say "there is no data disk with a file system on this host"
        return 7
    }
    as_root mkdir -p "$at"
    # noload: a journal cannot be played back on a disk that others read, too.
    as_root mount -o ro,noload "$disk" "$at" || as_root mount -o ro "$disk" "$at"
    say "mounted $disk at $at"
}

thrice() { # COMMAND...
    local try
    for try in 1 2 3; do
        "$@" </dev/null && return
        ((try == 3)) || sleep "$((try * ${STAGE_PAUSE_SECONDS:-10}))"
    done
    return 4
}

copy() { # SOURCE DIRECTORY
    mkdir -p "$2"
    thrice gcloud --quiet storage rsync --recursive "--exclude=$NOT_OUTSIDE" "${1%/}" "$2" && say "copied $1 to $2" && return
    say "$1 cannot be copied: is it there, and may this machine's service account read it?"
    return 4
}

stage() { # SOURCE DIRECTORY
    local source=${1%/} directory=$2 new=$2/corpus.json.new try why
    mkdir -p "$directory"
    thrice gcloud --quiet storage cp "$source/corpus.json" "$new" || {
        say "$source/corpus.json cannot be read: is that a corpus, and may this machine's service account read it?"
        return 4
    }
    if cmp -s "$new" "$directory/corpus.json" && check_corpus "$directory" "$new" 2>/dev/null; then
        rm "$new"
        say "$directory is staged already"
        return
    fi
    # A directory without corpus.json is not a corpus yet: it comes last. Files that are whole are not copied again.
    rm -f "$directory/corpus.json"
    why=$(check_corpus "$directory" "$new" 2>&1) || true
    if [[ $why == 'no room'* ]]; then
        say "$why"
        return 7
    fi
    for try in 1 2 3; do
        gcloud --quiet storage rsync --recursive "--exclude=$NOT_OUTSIDE|corpus\.json" "$source" "$directory" </dev/null ||
            say "copying was interrupted (try $try)"
        if why=$(check_corpus "$directory" "$new" 2>&1); then
            mv "$new" "$directory/corpus.json"
            say "staged $source to $directory"
            return
        fi
        say "$why"
    done
    return 4
}

verb=${1:-}
case $verb in
    state | start | cap | since | train | stop | stage | copy) shift && "$verb" "$@" ;;
    mount) mount_disk ;;
    logs) echo "== $(hostname)" && tail -n "${2:-50}" "$LOG" ;;
    follow) exec tail -n "${2:-50}" -F "$LOG" ;;
    *) echo "usage: worker.sh state|start|cap|since|train|stop|stage|copy|mount|logs|follow" >&2 && exit 2 ;;
esac
