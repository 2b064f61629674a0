#!/usr/bin/env bash
# What launch/tpu runs on a TPU host, and what runs the trainer there, as a systemd unit: a host that shuts down stops
# its units, so the trainer gets SIGTERM, saves, and exits with 42.
#
#   worker.sh stage gs://BUCKET/CORPUS DIRECTORY... copy a corpus, or several, to local disk
#   worker.sh start RUN ARGUMENT...                 start `bert-jax pretrain ARGUMENT...`, unless it runs
#   worker.sh cap FILE                              make that text what ends the costs of this host (launch/boot.sh)
#   worker.sh state RUN                             running, the exit code, none, or other (another run is running)
#   worker.sh stop                                  SIGTERM, and wait
#   worker.sh logs LINES
#   worker.sh since LINE                            what the log has had since; the last line is "@bert-jax-at LINE"
#   worker.sh train                                 the unit's own command
set -Eeuo pipefail

# Together with them in one file, on GKE.
if ! declare -F whole >/dev/null; then
    # shellcheck source=launch/lib/outside.sh
    source "$(dirname "${BASH_SOURCE[0]}")/lib/outside.sh"
    # shellcheck source=launch/lib/unit.sh
    source "$(dirname "${BASH_SOURCE[0]}")/lib/unit.sh"
fi
LOG=$PLACE/log/train.log

say() { printf '%s: %s\n' "$(hostname)" "$*"; }
tell() { echo "== $(date '+%F %T') $(hostname): $*" >>"$LOG"; }

run_of() { cat "$PLACE/run" 2>/dev/null || true; } # the run that was started last

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

# What only the trainer is to see (SECRETS of launch/tpu): lines of NAME=value, which nothing executes or prints.
secrets() {
    local name value
    [[ -f $PLACE/src/run/secrets.env ]] || return 0
    while IFS='=' read -r name value || [[ $name ]]; do
        [[ ! $name =~ ^[A-Z][A-Z0-9_]*$ ]] || export "$name=$value"
    done <"$PLACE/src/run/secrets.env"
}

start() { # RUN ARGUMENT...
    local run=$1 name
    shift
    if running; then
        [[ $(run_of) == "$run" ]] || { say "another run is running" && return 3; }
        say "is running already"
        return
    fi
    mkdir -p "$PLACE/log"
    rm -f "$PLACE/exit" "$PLACE/run.env"
    (umask 077 && : >"$PLACE/run.env") # for nobody else to read
    {
        # Worker I of N: for trainers that are given their number. Cloud TPU's host names end in -w-I.
        name=$(hostname)
        ARGUMENTS=("${@//%i/"${TPU_WORKER_ID:-${name##*-w-}}"}")
        declare -p ARGUMENTS
        # The launcher's choices, and what it should know of the host.
        for name in LIBTPU_INIT_ARGS JAX_COMPILATION_CACHE_DIR BERT_JAX_HOME WORKDIR DOCTOR; do
            [[ ! ${!name:-} ]] || printf 'export %s=%q\n' "$name" "${!name}"
        done
    } >"$PLACE/run.env"
    echo "$run" >"$PLACE/run"
    # mixed: SIGTERM goes to this script alone, which hands it on once.
    as_root systemctl reset-failed bert-jax 2>/dev/null || true
    as_unit --unit=bert-jax --property=KillMode=mixed --property=TimeoutStopSec=300 \
        /bin/bash "$PLACE/src/launch/worker.sh" train
    say "started"
}

# Runs a command with the run's arguments, and hands SIGTERM on to it, once. CODE is its exit code.
attend() { # COMMAND...
    CODE=143 # of one that is stopped before it begins
    [[ ! $STOPPING ]] || return 0
    "$@" "${ARGUMENTS[@]}" >>"$LOG" 2>&1 </dev/null &
    CHILD=$!
    [[ ! $STOPPING ]] || kill -TERM "$CHILD"
    # A signal ends `wait` before the child has ended; the last `wait` has the child's own code.
    while kill -0 "$CHILD" 2>/dev/null; do wait "$CHILD" || true; done
    CODE=0
    wait "$CHILD" || CODE=$?
}

train() {
    local signs bert_jax=("$PLACE/venv/bin/python" -m bert_jax)
    STOPPING='' CHILD='' CODE=0
    trap 'STOPPING=1; [[ ! $CHILD ]] || kill -TERM "$CHILD" 2>/dev/null || true' TERM INT
    # shellcheck source=/dev/null
    source "$PLACE/run.env"
    # JAX's own choice of a port, 8482, is closed in the firewall rule that Google makes for TPU networks.
    export JAX_COORDINATOR_PORT=8476
    export TPU_MIN_LOG_LEVEL=2 PYTHONUNBUFFERED=1
    ulimit -c 0
    signs &
    signs=$!
    # What the doctor finds to fail is the run's code, as if that had ended with it. One that is ill itself, or slow, stops
    # nothing.
    if [[ ${DOCTOR:-1} != 0 ]]; then
        tell "doctor"
        attend timeout "${DOCTOR_SECONDS:-600}" "${bert_jax[@]}" doctor
        [[ $CODE == 0 || $CODE =~ ^[2-8]$ ]] || tell "the doctor itself ended with code $CODE: going on without it"
    fi
    if [[ $CODE =~ ^[2-8]$ ]]; then
        tell "not started: this is what the run would end with"
    else
        secrets
        tell "checkout $(cat "$PLACE/src/run/checkout" 2>/dev/null): pretrain ${ARGUMENTS[*]}"
        attend "${bert_jax[@]}" pretrain
    fi
    tell "exit code $CODE"
    echo "$CODE" >"$PLACE/exit.new"
    mv "$PLACE/exit.new" "$PLACE/exit"
    kill "$signs" 2>/dev/null || true
    keep_log
    # Whoever gives the same command tomorrow is to make no machine for it; nor the loop around launch/tpu, where its hours are
    # spent: a minute that has begun counts.
    if ((CODE)); then sign 59; elif is_first; then note "$(run_of)" launched_and_done || true; fi
    exit "$CODE"
}

# The machine may be gone tomorrow.
keep_log() {
    [[ ${WORKDIR:-} == gs://* ]] || return 0
    timeout "${LOG_SECONDS:-20}" gcloud --quiet storage cp "$LOG" "$WORKDIR/logs/$(hostname).log" </dev/null >/dev/null 2>&1 ||
        tell "the log could not be copied to $WORKDIR/logs"
}

# --- what the workdir is told ----------------------------------------------------------------------

is_first() { [[ ${WORKDIR:-} == gs://* && $(hostname) == *-w-0 ]]; }

# Every few minutes, while it trains: the log, in case that the host is lost, and how long the run has had machines, by the
# account of launch/boot.sh, so that its hours are those of all its machines together.
signs() {
    local never
    exec {never}<> <(:) # a pipe that says nothing: a pause that no other process makes
    while :; do
        sign 0
        read -r -t "${ALIVE_SECONDS:-240}" -u "$never" || true
        keep_log
    done
}

sign() { # SECONDS to add before they are minutes
    local total
    if is_first && read -r _ _ total _ 2>/dev/null <"${CAP_AT:-/var/lib/bert-jax}/account" && total=$(whole "$total"); then
        note "$(run_of) $(((total + $1) / 60)) $(date +%FT%T.%N)" launched_alive || true
    fi
}

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
    code=$(as_root bash "$1" may) || true # it only warns
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
        as_root systemctl stop bert-jax
        say "stopped, exit code $(cat "$PLACE/exit" 2>/dev/null || echo none)"
    else
        say "nothing runs"
    fi
}

# A directory without corpus.json is not a corpus yet: it comes last. Files that are whole are not copied again. Whoever opens
# the corpus, the doctor first, compares its sizes.
stage() { # SOURCE DIRECTORY...
    while (($#)); do
        copy "$1" "$2" || return
        shift 2
    done
}

copy() { # SOURCE DIRECTORY
    local source=${1%/} directory=${2%/} left
    mkdir -p "$directory"
    # Another command may be copying here, or what an interrupted one has left.
    exec 9>"$directory.lock"
    flock -n 9 || { say "another copy to $directory is under way: waiting for it" && flock 9; }
    for left in 3 2 1 0; do
        if gcloud --quiet storage cp "$source/corpus.json" "$directory/corpus.json.new" </dev/null &&
            rm -f "$directory/corpus.json" &&
            gcloud --quiet storage rsync --recursive "--exclude=$NOT_OUTSIDE|corpus\.json" "$source" "$directory" </dev/null; then
            mv "$directory/corpus.json.new" "$directory/corpus.json"
            say "staged $source to $directory"
            return
        fi
        say "copying was interrupted ($left tries are left)"
        ((left == 0)) || sleep "${STAGE_PAUSE_SECONDS:-10}"
    done
    say "$source cannot be copied: is it a corpus, has the disk room for it, and may this machine's service account read it?"
    return 4
}

verb=${1:-}
case $verb in
    state | start | cap | since | train | stop | stage) shift && "$verb" "$@" ;;
    logs) echo "== $(hostname)" && tail -n "${2:-50}" "$LOG" ;;
    *) echo "usage: worker.sh state|start|cap|since|train|stop|stage|logs" >&2 && exit 2 ;;
esac
