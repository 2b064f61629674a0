#!/usr/bin/env bash
# What launch/tpu runs on a TPU host, and what runs the trainer there, as a systemd unit: a host that shuts down stops
# its units, so the trainer gets SIGTERM, saves, and exits with 42.
#
#   worker.sh stage gs://BUCKET/CORPUS DIRECTORY    copy a corpus to local disk, and check it
#   worker.sh start RUN ARGUMENT...                 start `bert-jax pretrain ARGUMENT...`, unless it runs
#   worker.sh state RUN                             running, the exit code, none, or other (another run is running)
#   worker.sh stop                                  SIGTERM, and wait
#   worker.sh logs LINES
#   worker.sh train                                 the unit's own command
set -Eeuo pipefail

UNIT=bert-jax
PLACE=${BERT_JAX_HOME:-$HOME/bert-jax}
LOG=$PLACE/log/train.log

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

start() { # RUN ARGUMENT...
    local run=$1 name
    shift
    if running; then
        say "is running already"
        return
    fi
    mkdir -p "$PLACE/log"
    rm -f "$PLACE/exit"
    {
        # Worker I of N: for trainers that are given their number. Cloud TPU's host names end in -w-I.
        name=$(hostname)
        ARGUMENTS=("${@//%i/${TPU_WORKER_ID:-${name##*-w-}}}")
        declare -p ARGUMENTS
        # The launcher's choices, and what it should know of the host.
        for name in LIBTPU_INIT_ARGS JAX_COMPILATION_CACHE_DIR BERT_JAX_HOME; do
            [[ ! ${!name:-} ]] || printf 'export %s=%q\n' "$name" "${!name}"
        done
    } >"$PLACE/run.env"
    echo "$run" >"$PLACE/run"
    as_root systemctl reset-failed "$UNIT" 2>/dev/null || true
    # mixed: SIGTERM to this script alone, which hands it on once. Units stop before what they are ordered after: the
    # network has to be there while the trainer saves.
    as_root systemd-run --unit="$UNIT" --uid="$(id -u)" --gid="$(id -g)" --working-directory="$PLACE" \
        --property=KillMode=mixed --property=TimeoutStopSec="${STOP_SECONDS:-300}" \
        --property=LimitNOFILE=100000 --property=After=network-online.target \
        --setenv=HOME="$HOME" --setenv=BERT_JAX_HOME="$PLACE" \
        /bin/bash "$PLACE/src/launch/worker.sh" train
    say "started"
}

train() {
    local child='' stopping='' code
    trap 'stopping=1; [[ ! $child ]] || kill -TERM "$child" 2>/dev/null || true' TERM INT
    # shellcheck source=/dev/null
    source "$PLACE/run.env"
    # JAX's own choice, 8482, is closed in the firewall rule that Google makes for TPU networks.
    export JAX_COORDINATOR_PORT=${JAX_COORDINATOR_PORT:-8476}
    # A read from a bucket that stalls is given up and tried again.
    export TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS=60 TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES=1024
    export TPU_MIN_LOG_LEVEL=${TPU_MIN_LOG_LEVEL:-2} PYTHONUNBUFFERED=1
    ulimit -c 0
    ulimit -n 100000 2>/dev/null || true
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
    exit "$code"
}

stop() {
    if running; then
        as_root systemctl stop "$UNIT"
        say "stopped, exit code $(cat "$PLACE/exit" 2>/dev/null || echo none)"
    else
        say "nothing runs"
    fi
}

# Compares a directory with a manifest: prints what is missing or has another size, or how many bytes are still to come
# and there is no room for.
check_corpus() { # DIRECTORY MANIFEST
    python3 - "$1" "$2" <<'PYTHON'
import json, pathlib, shutil, sys
directory = pathlib.Path(sys.argv[1])
manifest = json.loads(pathlib.Path(sys.argv[2]).read_text())
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
        gcloud --quiet storage rsync --recursive '--exclude=^corpus\.json' "$source" "$directory" </dev/null ||
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
    state | start | train | stop | stage) shift && "$verb" "$@" ;;
    logs) echo "== $(hostname)" && tail -n "${2:-50}" "$LOG" ;;
    *) echo "usage: worker.sh state|start|train|stop|stage|logs" >&2 && exit 2 ;;
esac
