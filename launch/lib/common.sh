# shellcheck shell=bash
# What every command of launch/tpu needs: settings, messages, dry runs, retries, and the table of accelerators.
# Sourced; sets strict mode for whoever sources it.
set -Eeuo pipefail

# Exit codes of the launcher. 0 to 7 and 42 mean what they mean for `bert-jax pretrain`.
EXIT_USAGE=2     # wrong option, unknown accelerator, a setting is missing, the TPU is another run's
EXIT_CLOUD=20    # the cloud refuses: permission, argument, quota, or it cannot be reached
EXIT_WAITED=21   # the request was not filled
EXIT_SETUP=23    # tpu_setup.sh or the staging of the corpus fails on a host
EXIT_CONTACT=24  # hosts do not answer
EXIT_HOURS=25    # the run has had its --max-hours
EXIT_GONE=42     # the machine is gone: the same command goes on, as after the trainer's 42
export EXIT_USAGE EXIT_CLOUD EXIT_WAITED EXIT_SETUP EXIT_CONTACT EXIT_HOURS EXIT_GONE

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
ACCELERATORS=$ROOT/launch/accelerators.tsv
FLAGS=$ROOT/launch/flags.tsv
source "$ROOT/launch/lib/outside.sh"
DRY_RUN=${DRY_RUN:-}

# Messages go to stderr; stdout is for what was asked for. A dry run has no times, so that two can be compared.
log() {
    local time=''
    [[ $DRY_RUN ]] || time="$(date '+%F %T') "
    local text=$*
    printf '%s%s\n' "$time" "${text//[[:cntrl:]]/ }" >&2 # one line, whatever it quotes
}

die() { # CODE MESSAGE
    local code=$1
    shift
    log "error: $*"
    exit "$code"
}

need() { # VARIABLE OPTION WHAT
    [[ ${!1:-} ]] || die "$EXIT_USAGE" "$2 is missing: $3"
}

# Runs a command, or only prints it, in a form that a shell reads. The copy of stdout is for callers that capture the
# output.
exec 3>&1
run() {
    local word line='+'
    if [[ $DRY_RUN ]]; then
        for word in "$@"; do
            [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word=${word@Q}
            line+=" $word"
        done
        printf '%s\n' "$line" >&3
    else
        "$@" </dev/null
    fi
}

pause() { # SECONDS
    [[ $DRY_RUN ]] || sleep "$1"
}

# Waits before try number N: RETRY_MS times two a try, at most a minute, and up to as much again by chance, so that several
# launchers do not knock at the same moment.
backoff() { # N
    local wait=$((${RETRY_MS:-2000} << ($1 < 6 ? $1 - 1 : 5)))
    wait=$(((wait < 60000 ? wait : 60000) * (100 + RANDOM % 100) / 100))
    pause "$((wait / 1000)).$(printf %03d $((wait % 1000)))"
}

retry() { # TRIES COMMAND...
    local tries=$1 try=1 code
    shift
    while :; do
        code=0
        "$@" || code=$?
        ((code == 0)) && return 0
        ((try >= tries)) && return "$code"
        log "try $try of $tries failed with code $code: $1 ${2:-} ${3:-}"
        backoff "$((try++))"
    done
}

need_gcloud() {
    [[ $DRY_RUN ]] || command -v gcloud >/dev/null ||
        die "$EXIT_CLOUD" "gcloud is not installed, or not on the PATH: https://cloud.google.com/sdk/docs/install"
}

gc() { # gcloud, which never asks
    run gcloud --quiet "--project=$PROJECT" "$@"
}

# The row of accelerators.tsv for a type, as variables. An unknown one is refused with the list.
accelerator() { # TYPE
    local row
    row=$(awk -F'\t' -v type="$1" '$1 == type' "$ACCELERATORS")
    [[ $row ]] || die "$EXIT_USAGE" "accelerator type '$1' is not known; $(meant "$1")one of: $(
        awk -F'\t' '!/^#/ && $1 != "type" { printf "%s%s", gap, $1; gap = " " }' "$ACCELERATORS"
    )"
    IFS=$'\t' read -r _ GENERATION API RUNTIME HOSTS CHIPS DEVICES BOUNDS TOPOLOGY GKE_ACCELERATOR <<<"$row"
    export GENERATION API RUNTIME HOSTS CHIPS DEVICES BOUNDS TOPOLOGY GKE_ACCELERATOR
}

# A hint for other names of a slice: v5e-64 as everybody says it, v5e:8x8 as `bert-jax plan` has it.
meant() { # TYPE -> "did you mean NAME? ", or nothing
    awk -F'\t' -v said="$1" '!/^#/ {
        number = $1; sub(/.*-/, "", number)
        if (said == $2 "-" number || said == $2 ":" $9) { printf "did you mean %s? ", $1; exit } }' "$ACCELERATORS"
}

# LIBTPU_INIT_ARGS for a generation: what flags.tsv has for it.
libtpu_flags() { # GENERATION
    awk -F'\t' -v generation="$1" '!/^#/ && $1 != "generation" && index("," $1 ",", "," generation ",") {
        printf "%s%s", gap, $2; gap = " " }' "$FLAGS"
}

# List price of a chip for an hour, on demand, in dollars: those of bert_jax_lab/planning/topologies.py, which has the sources.
price() { # GENERATION
    awk -v generation="$1" '$1 == generation { print $2 }' <<<$'v2 1.125\nv3 2.00\nv4 3.22\nv5e 1.20\nv5p 4.20\nv6e 2.70'
}

seconds() { awk -v number="$1" -v unit="$2" 'BEGIN { printf "%d", number * unit }'; } # NUMBER UNIT
