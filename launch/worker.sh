#!/usr/bin/env bash
# What launch/tpu runs on a TPU host, and what runs the trainer there, as a systemd unit: a host that shuts down stops
# its units, so the trainer gets SIGTERM, saves, and exits with 42.
#
#   worker.sh stage gs://BUCKET/CORPUS DIRECTORY    copy a corpus to local disk, and check it
#   worker.sh copy gs://BUCKET/MODEL DIRECTORY      copy anything else there
#   worker.sh mount                                 make the data disk readable at /mnt/bert-jax
#   worker.sh start RUN ARGUMENT...                 start `bert-jax pretrain ARGUMENT...`, unless it runs, or
#                                                   `bert-jax doctor ARGUMENT...` finds that it would fail
#   worker.sh limit RUN                             what ends the costs of that run, if it is running
#   worker.sh state RUN                             running, the exit code, none, or other (another run is running)
#   worker.sh stop                                  SIGTERM, and wait
#   worker.sh logs LINES, worker.sh follow LINES
#   worker.sh train, worker.sh guard                the units' own commands
set -Eeuo pipefail

UNIT=bert-jax
GUARD=bert-jax-guard
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
    if running; then
        if [[ $(run_of) == "$1" ]]; then echo running; else echo other; fi
    elif [[ $(run_of) == "$1" && -f $PLACE/exit ]]; then
        cat "$PLACE/exit"
    elif [[ $(run_of) == "$1" ]]; then
        echo 137 # it was started, runs no longer and left no code: the host was reset, or it was killed
    else
        echo none
    fi
}

# A systemd unit for this script's VERB; mixed: SIGTERM goes to this script alone, which hands it on once.
unit() { # NAME VERB OPTION...
    # shellcheck source=launch/lib/unit.sh
    source "$PLACE/src/launch/lib/unit.sh"
    as_root systemctl reset-failed "$1" 2>/dev/null || true
    as_root systemd-run --unit="$1" --uid="$(id -u)" --gid="$(id -g)" --working-directory="$PLACE" \
        --property=KillMode=mixed --property=TimeoutStopSec="${STOP_SECONDS:-300}" "${UNIT_PROPERTIES[@]}" "${@:3}" \
        --setenv=HOME="$HOME" --setenv=BERT_JAX_HOME="$PLACE" \
        /bin/bash "$PLACE/src/launch/worker.sh" "$2"
}

# Writes down variables, for a unit to read.
keep() { # VARIABLE...
    local name
    for name in "$@"; do
        [[ ! ${!name:-} ]] || printf 'export %s=%q\n' "$name" "${!name}"
    done
}

# Makes an empty file that nobody else reads, to be written to.
private() { # FILE
    rm -f "$1"
    (umask 077 && : >"$1")
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
        start_guard
        say "is running already"
        return
    fi
    mkdir -p "$PLACE/log"
    rm -f "$PLACE/exit"
    private "$PLACE/run.env"
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
    ((code)) || unit "$UNIT" train
    start_guard
    ((code == 0)) || return "$code"
    say "started"
}

# Asks `bert-jax doctor` on every host, before anything is trained. What it finds to fail is kept as the exit code of the
# run, as if that had ended with it: the supervisor stops. A doctor that is ill itself, or slow, stops nothing.
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
    local child='' stopping='' code
    trap 'stopping=1; [[ ! $child ]] || kill -TERM "$child" 2>/dev/null || true' TERM INT
    # shellcheck source=/dev/null
    source "$PLACE/run.env"
    trainer_environment
    secrets
    echo "== $(date '+%F %T') $(hostname): pretrain ${ARGUMENTS[*]}" >>"$LOG"
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
    keep_log
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

# --- the guard -------------------------------------------------------------------------------------

# Worker 0 has a second unit beside the trainer, for runs whose workdir is in a bucket. With several slices each has one, and
# they do the same.
start_guard() {
    [[ ${TPU:-} && ${WORKDIR:-} == gs://* && $(hostname) == *-w-0 ]] || return 0
    as_root systemctl stop "$GUARD" 2>/dev/null || true
    # In one move: a machine that restarts meanwhile finds the one before it, or this one.
    private "$PLACE/guard.env.new"
    keep TPU WORKDIR DELETE_WHEN_DONE MAX_MINUTES >"$PLACE/guard.env.new"
    mv "$PLACE/guard.env.new" "$PLACE/guard.env"
    unit "$GUARD" guard --property=Restart=on-failure --property=RestartSec=60
}

# Sees to the end of the costs, whether or not anybody watches from elsewhere:
# - leaves a sign of life in WORKDIR/launched_alive: RUN, the minutes that the run has had machines, and the time. A
#   supervisor whose ssh fails then knows that the hosts are well.
# - deletes the TPU when the run is done, some time later, so that all hosts have copied their logs;
# - ends the run and deletes the TPU when its minutes are spent.
guard() {
    local run minutes done_since='' signed=-1000
    # shellcheck source=/dev/null
    source "$PLACE/guard.env"
    run=$(run_of)
    while :; do
        minutes=$(minutes_of "$run") || {
            # A sign that forgets the minutes of earlier machines would give the run its hours again.
            tell "cannot read $WORKDIR/launched_alive: $(tail -n 1 "$PLACE/guard.err")"
            sleep "${GUARD_SECONDS:-20}"
            continue
        }
        if ((SECONDS - signed >= ${ALIVE_SECONDS:-240})); then
            note "$run $minutes $(date +%FT%T.%N)" launched_alive && signed=$SECONDS
        fi
        if [[ ${MAX_MINUTES:-} ]] && ((minutes >= MAX_MINUTES)); then
            tell "the run has had machines for $minutes of $MAX_MINUTES minutes: ending it, and deleting the TPU"
            note "$run $minutes $(date +%FT%T.%N)" launched_alive || true
            as_root systemctl stop "$UNIT" || true
            # Until it is gone: the cloud may accept the request and fail afterwards.
            delete_tpu || true
            sleep "${DELETING_SECONDS:-240}"
        elif [[ ${DELETE_WHEN_DONE:-} == 1 && $(state "$run") == 0 ]]; then
            done_since=${done_since:-$SECONDS}
            if ((SECONDS - done_since >= ${LAST_SECONDS:-120})); then
                tell "the run is done: deleting the TPU"
                # First the mark: a supervisor that finds no machine would make another one.
                note "$run" launched_and_done && { delete_tpu || true; } && sleep "${DELETING_SECONDS:-240}"
            fi
        else
            done_since=''
        fi
        sleep "${GUARD_SECONDS:-20}"
    done
}

tell() { echo "== $(date '+%F %T') $(hostname): guard: $*" >>"$LOG"; }

note() { # TEXT NAME: an object of the workdir
    echo "$1" >"$PLACE/$2"
    timeout 60 gcloud --quiet storage cp "$PLACE/$2" "$WORKDIR/$2" </dev/null >/dev/null 2>"$PLACE/guard.err" ||
        { tell "cannot write $WORKDIR/$2: $(tail -n 1 "$PLACE/guard.err")" && return 1; }
}

# The minutes that the run has had machines: what it says in the bucket of others, and since this one was booted; or since
# the run began here, if it is not the first one here. Returns 1 if the bucket does not say.
minutes_of() { # RUN
    local minutes up said try known='' began
    if ! began=$(whole "$(cat "$PLACE/began.$1" 2>/dev/null)"); then
        for try in 1 2 3; do
            said=$(gcloud --quiet storage cat "$WORKDIR/launched_alive" </dev/null 2>"$PLACE/guard.err" | beginning) &&
                known=yes && break
            grep -qE 'matched no|not found|404' "$PLACE/guard.err" && known=yes && break
            sleep "$try"
        done
        [[ $known ]] || return 1
        minutes=$(minutes_in "$said" "$1") || {
            tell "$WORKDIR/launched_alive was not written by a run: its hours count from here"
            minutes=0
        }
        read -r up _ <"${UPTIME_FILE:-/proc/uptime}"
        up=$(whole "${up%.*}") || up=0
        ! compgen -G "$PLACE/began.*" >/dev/null || up=0
        began=$(($(date +%s) - up - minutes * 60))
        # Before 1970, says a sign with a number that nobody writes.
        ((began > 0)) || began=0
        echo "$began" >"$PLACE/began.$1"
    fi
    echo $((($(date +%s) - began) / 60))
}

delete_tpu() {
    local project zone name
    IFS=/ read -r project zone name <<<"$TPU"
    LOG_SECONDS=60 keep_log
    gcloud --quiet "--project=$project" compute tpus queued-resources delete "$name" "--zone=$zone" --force --async \
        </dev/null >/dev/null 2>"$PLACE/guard.err" || {
        tell "cannot delete $name: $(tail -n 1 "$PLACE/guard.err"); its service account needs the role of docs/launch.md"
        return 1
    }
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

limit() { # RUN
    if running && [[ $(run_of) == "$1" ]]; then start_guard; fi
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

copy() { # SOURCE DIRECTORY
    local try
    mkdir -p "$2"
    for try in 1 2 3; do
        if gcloud --quiet storage rsync --recursive "--exclude=$NOT_OUTSIDE" "${1%/}" "$2" </dev/null; then
            say "copied $1 to $2"
            return
        fi
        ((try == 3)) || sleep "$((try * ${STAGE_PAUSE_SECONDS:-10}))"
    done
    say "$1 cannot be copied: is it there, and may this machine's service account read it?"
    return 4
}

stage() { # SOURCE DIRECTORY
    local source=${1%/} directory=$2 new=$2/corpus.json.new read='' try why
    mkdir -p "$directory"
    for try in 1 2 3; do
        gcloud --quiet storage cp "$source/corpus.json" "$new" </dev/null && read=yes && break
        ((try == 3)) || sleep "$((try * ${STAGE_PAUSE_SECONDS:-10}))"
    done
    [[ $read ]] || {
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
    state | start | limit | train | guard | stop | stage | copy) shift && "$verb" "$@" ;;
    mount) mount_disk ;;
    logs) echo "== $(hostname)" && tail -n "${2:-50}" "$LOG" ;;
    follow) exec tail -n "${2:-50}" -F "$LOG" ;;
    *) echo "usage: worker.sh state|start|limit|train|guard|stop|stage|copy|mount|logs|follow" >&2 && exit 2 ;;
esac
