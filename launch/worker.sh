#!/usr/bin/env bash
# Runs on a TPU host: copies corpora, and runs the trainer as the systemd unit bert-jax.
#
#   worker.sh stage CORPUS...       copy corpora from buckets to the local disk
#   worker.sh options CORPUS...     print the --corpus options for the copies
#   worker.sh flags GENERATION      print LIBTPU_INIT_ARGS
#   worker.sh start ARGUMENT...     start `bert-jax pretrain ARGUMENT...`; nothing if it runs already
#   worker.sh state                 print running, none, or the exit code of the last trainer
#   worker.sh log LINES|+LINE       print the end of the log, or the log from a line on and then "@bert-jax-at NEXT"
#   worker.sh train, worker.sh ended    the commands of the unit

# The unit is enabled, so systemd starts it at boot, and restarts it after the exit codes in RESTART. A reboot, host maintenance
# or a lost peer therefore resumes the run from its last checkpoint. Other codes leave the file `exit`, which the unit refuses to
# start with: a finished run, and an error that would occur again, are not started at boot. An unexpected error (1) may be
# transient, or the loss of a peer, so it is restarted CRASHES times before it leaves the file.

# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

LOG=$PLACE/log/train.log
UNIT=${BERT_JAX_UNITS:-/etc/systemd/system}/bert-jax.service
# Preempted, network failed, peer lost, killed, terminated, hang (docs/reference/exit-codes.md).
RESTART='42 75 134 137 143 200 SIGKILL SIGABRT'
# As maxRestarts of jobset.yaml; counted from `start` on.
CRASHES=10

say() { echo "== $(date '+%F %T') $(hostname): $*"; }

unit() {
    cat <<END
[Unit]
Description=bert-jax pretrain
Wants=network-online.target
After=network-online.target
ConditionPathExists=!$PLACE/exit
# A trainer that cannot start is not restarted for ever: boot.sh deletes an idle TPU. More starts than CRASHES, so that \`ended\`
# decides about an unexpected error.
StartLimitIntervalSec=3600
StartLimitBurst=15
[Service]
User=$(id -un)
WorkingDirectory=$PLACE
Environment=HOME=$HOME BERT_JAX_HOME=$PLACE PATH=$PATH
ExecStart=/bin/bash $PLACE/src/launch/worker.sh train
ExecStopPost=/bin/bash $PLACE/src/launch/worker.sh ended
StandardOutput=append:$LOG
StandardError=append:$LOG
# SIGTERM is only sent to the trainer, which saves and exits with 42.
KillMode=mixed
TimeoutStopSec=300
RestartForceExitStatus=1 $RESTART SIGSEGV SIGBUS SIGILL SIGFPE SIGTRAP SIGSYS
RestartSec=30
# The drivers of v5e, v5p and v6e lock memory.
LimitMEMLOCK=infinity
LimitNOFILE=100000
[Install]
WantedBy=multi-user.target
END
}

start() { # ARGUMENT...
    local name arguments
    ARGUMENTS=("$@")
    arguments=$(declare -p ARGUMENTS)
    if is_training; then
        if [[ $(head -n 1 "$PLACE/run.sh") != "$arguments" ]]; then
            say "error: another run is running on this host. To stop it: launch/tpu ssh -- sudo systemctl disable --now bert-jax"
            return "$EXIT_USAGE"
        fi
        say "the trainer is running already"
        return
    fi
    mkdir -p "$PLACE/log"
    rm -f "$PLACE/exit" "$PLACE/last" "$PLACE/crashes"
    {
        echo "$arguments"
        for name in LIBTPU_INIT_ARGS JAX_COMPILATION_CACHE_DIR WORKDIR; do
            if [[ ${!name:-} ]]; then printf 'export %s=%q\n' "$name" "${!name}"; fi
        done
    } >"$PLACE/run.sh"
    unit | as_root tee "$UNIT" >/dev/null
    as_root systemctl daemon-reload
    as_root systemctl reset-failed bert-jax 2>/dev/null || true
    as_root systemctl enable --quiet bert-jax
    as_root systemctl start bert-jax
    say "started the trainer"
}

train() {
    local code=0 bert_jax=("$PLACE/venv/bin/python" -m bert_jax)
    # shellcheck source=/dev/null # written by `start`
    source "$PLACE/run.sh"
    # Google's firewall rule for TPU networks does not open JAX's default port, 8482.
    export JAX_COORDINATOR_PORT=8476 TPU_MIN_LOG_LEVEL=2 PYTHONUNBUFFERED=1
    ulimit -c 0
    say "doctor"
    timeout "${DOCTOR_SECONDS:-600}" "${bert_jax[@]}" doctor "${ARGUMENTS[@]}" || code=$?
    if [[ $code =~ ^[2-8]$ ]]; then exit "$code"; fi
    if ((code != 0)); then say "the doctor ended with exit code $code: training without its checks"; fi
    say "pretrain ${ARGUMENTS[*]}"
    exec "${bert_jax[@]}" pretrain "${ARGUMENTS[@]}"
}

# systemd sets EXIT_STATUS to the exit code or the name of the signal.
ended() {
    local code=${EXIT_STATUS:-1} crashes=0
    case $code in
        KILL) code=137 ;;
        ABRT) code=134 ;;
        TERM) code=143 ;;
        *[!0-9]*) code=1 ;;
    esac
    say "exit code $code"
    echo "$code" >"$PLACE/last"
    if ((code == 1)); then
        echo >>"$PLACE/crashes"
        crashes=$(wc -l <"$PLACE/crashes")
    fi
    if ((code == 1 && crashes <= CRASHES)); then
        say "an unexpected error: restarting, at most $CRASHES times"
    elif [[ " $RESTART " != *" $code "* ]]; then
        echo "$code" >"$PLACE/exit"
    fi
    # The log is copied, because the disk of this host may be deleted.
    # shellcheck source=/dev/null
    source "$PLACE/run.sh"
    if [[ ${WORKDIR:-} == gs://* ]]; then
        timeout "${LOG_SECONDS:-20}" gcloud --quiet storage cp "$LOG" "$WORKDIR/logs/$(hostname).log" </dev/null >/dev/null 2>&1 ||
            say "the log was not copied to $WORKDIR/logs"
    fi
}

state() {
    if is_training; then echo running; else cat "$PLACE/last" 2>/dev/null || echo none; fi
}

print_log() { # LINES, or +LINE
    local lines
    if [[ $1 == +* ]]; then
        lines=$(wc -l 2>/dev/null <"$LOG") || lines=0
        sed -n "${1#+},${lines}p" "$LOG" 2>/dev/null | tail -n 1000
        echo "@bert-jax-at $((lines + 1))"
    else
        echo "== $(hostname)"
        tail -n "$1" "$LOG"
    fi
}

# gcloud's rsync writes an object named `../x` outside the directory. It needs one exclusion pattern per alternative.
OUTSIDE='([\s\S]*/)?[.][.]?/|([\s\S]*/)?[.][.]?$'

# Copies a corpus. corpus.json comes last: a directory without it is not a corpus. `bert-jax pretrain` checks sizes and checksums.
copy() { # PLACE DIRECTORY
    mkdir -p "$2"
    if gcloud --quiet storage cp "$1/corpus.json" "$2/corpus.json.new" </dev/null &&
        rm -f "$2/corpus.json" &&
        gcloud --quiet storage rsync --recursive "--exclude=$OUTSIDE|corpus\.json" "$1" "$2" </dev/null; then
        mv "$2/corpus.json.new" "$2/corpus.json"
        say "copied $1 to $2"
    else
        say "error: $1 was not copied. Check that it has a corpus.json, that the disk has space, and that the service account of \
this machine may read the bucket"
        return 4
    fi
}

stage() { # CORPUS...
    read_corpora "$@"
    set -- "${STAGED[@]}"
    while (($#)); do
        copy "$1" "$2"
        shift 2
    done
}

verb=${1:-}
if (($#)); then shift; fi
case $verb in
    stage | start | train | ended | state) "$verb" "$@" ;;
    options) read_corpora "$@" && printf '%s\n' "${CORPORA[@]}" ;;
    flags) libtpu_flags "$1" ;;
    log) print_log "${1:-50}" ;;
    *) usage >&2 && exit "$EXIT_USAGE" ;;
esac
