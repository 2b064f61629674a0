# shellcheck shell=bash disable=SC2034
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

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$ROOT/launch/lib/outside.sh"
DRY_RUN=${DRY_RUN:-}

# A program's help is what it begins with.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

# Messages go to stderr; stdout is for what was asked for. A dry run says that it is one, and has no times, so that two can be
# compared.
log() {
    local time='dry run: '
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

need() { # VARIABLE...
    local name missing=''
    for name in "$@"; do [[ ${!name:-} ]] || missing+=" --${name,,}"; done
    [[ ! $missing ]] || die "$EXIT_USAGE" "missing:${missing//_/-}; $HELP has them"
}

# Refuses a variable that is not as the table on stdin says: NAME PATTERN WHAT.
check_table() {
    local name pattern what
    while read -r name pattern what; do
        [[ ! ${!name:-} || ${!name} =~ ^($pattern)$ ]] || die "$EXIT_USAGE" "$name=${!name@Q}: $what"
    done
}

# A flag is 0 or 1; nothing here stands for 0.
check_flags() { # VARIABLE...
    local name
    for name in "$@"; do
        [[ ${!name:-} =~ ^[01]?$ ]] || die "$EXIT_USAGE" "$name=${!name@Q}: 0 or 1"
        [[ ${!name:-} != 0 ]] || printf -v "$name" ''
    done
}

# Whether a config is a path, or the name of a shipped one.
is_config() { [[ $1 == */* || -f $ROOT/configs/$1.py ]]; }

# What CORPUS names, a corpus or several with commas between, each PLACE or NAME=PLACE as for `bert-jax pretrain`: PLACES, its
# options in CORPORA, and in STAGED the place and the directory of each that hosts copy from a bucket.
corpora() { # DIRECTORY of the copies
    local word words=() name place names=' '
    CORPORA=() STAGED=() PLACES=()
    mapfile -td, words < <(printf %s "$CORPUS")
    for word in "${words[@]}"; do
        place=${word%/}
        name=${place##*/}
        [[ ! $word =~ ^([^/=]+)=(.*)$ ]] || name=${BASH_REMATCH[1]} place=${BASH_REMATCH[2]%/}
        [[ $place != *://* ]] || is_place "$place" ||
            die "$EXIT_USAGE" "CORPUS ${word@Q}: write a place in a bucket as gs://BUCKET/PATH"
        [[ $name =~ ^[A-Za-z0-9_.-]+$ && $name != . && $name != .. ]] ||
            die "$EXIT_USAGE" "CORPUS ${word@Q}: a source has a name of letters, digits and _ . -, and is written as NAME=PLACE"
        [[ $names != *" $name "* ]] || die "$EXIT_USAGE" "CORPUS ${CORPUS@Q}: two are called $name; write them as NAME=PLACE"
        names+="$name "
        PLACES+=("$place")
        [[ $place != gs://* ]] || { word=$1/$name && STAGED+=("$place" "$word"); }
        CORPORA+=(--corpus "$word")
    done
}

# Reads `--name value`, `--name=value` and `--flag` into variables, and into GIVEN as VARIABLE=value; what follows `--` into
# EXTRA. A --corpus that is repeated adds one.
read_options() { # "--FLAG..." "VARIABLE..." WORD...
    local option value variable corpora='' flags=" $1 " known=" $2 "
    shift 2
    GIVEN=() EXTRA=()
    while (($#)); do
        option=$1 value=1
        shift
        case $option in
            --) EXTRA=("$@") && break ;;
            -h | --help) usage && exit ;;
            --*) ;;
            *) die "$EXIT_USAGE" "what is '$option'? $HELP has the options" ;;
        esac
        variable=${option%%=*} variable=${variable#--} variable=${variable//-/_} variable=${variable^^}
        [[ $variable =~ ^[A-Z_]+$ && $known == *" $variable "* ]] ||
            die "$EXIT_USAGE" "unknown option ${option%%=*}; $HELP has them"
        if [[ $option == *=* ]]; then
            value=${option#*=}
        elif [[ $flags != *" $option "* ]]; then
            (($#)) || die "$EXIT_USAGE" "$option needs a value"
            value=$1 && shift
        fi
        [[ $variable != CORPUS ]] || corpora+=${corpora:+,}$value value=$corpora
        GIVEN+=("$variable=$value")
    done
    take_given
}

take_given() {
    local option
    for option in "${GIVEN[@]}"; do printf -v "${option%%=*}" %s "${option#*=}"; done
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

backoff() { # N, the number of tries that have failed
    pause "$((${RETRY_SECONDS:-2} << ($1 - 1)))"
}

TRIES=5
retry() { # COMMAND...
    local try code
    for ((try = 1; ; try++)); do
        "$@" && return
        code=$?
        ((try < TRIES)) || return "$code"
        log "try $try of $TRIES failed with code $code: $1 ${2:-} ${3:-}"
        backoff "$try"
    done
}

need_gcloud() {
    [[ $DRY_RUN ]] || command -v gcloud >/dev/null ||
        die "$EXIT_CLOUD" "gcloud is not installed, or not on the PATH: https://cloud.google.com/sdk/docs/install"
}

gc() { # gcloud, which never asks
    run gcloud --quiet "--project=$PROJECT" "$@"
}

# All accelerators, a line each: TYPE GENERATION API RUNTIME HOSTS CHIPS DEVICES BOUNDS TOPOLOGY GKE_ACCELERATOR PRICE, the
# chips and devices those of one host.
accelerators() {
    awk -F'\t' -v OFS='\t' '!/^#/ && $1 != "generation" {
        split($7, side, ",")
        host = side[1] * side[2]
        count = split($10, topologies, " ")
        for (i = 1; i <= count; i++) {
            chips = 1
            for (n = split(topologies[i], side, "x"); n; n--) chips *= side[n]
            print $2 "-" chips * $6, $1, $3, $4, chips / host, host, $8, $7, topologies[i], $9, $5
        }
    }' "$ROOT/launch/accelerators.tsv"
}

# One of them as variables; TYPE is its name there, for v5e-64 as everybody says it and v5e:8x8 as `bert-jax plan` has it,
# too. An unknown one is refused with the list.
accelerator() { # TYPE
    local row
    row=$(accelerators | awk -F'\t' -v said="$1" '{ number = $1; sub(/.*-/, "", number) }
        said == $1 || said == $2 "-" number || said == $2 ":" $9')
    [[ $row ]] || die "$EXIT_USAGE" "accelerator type '$1' is not known; one of: $(accelerators | cut -f 1 | tr '\n' ' ')"
    IFS=$'\t' read -r TYPE GENERATION API RUNTIME HOSTS CHIPS DEVICES BOUNDS TOPOLOGY GKE_ACCELERATOR PRICE <<<"$row"
}

# LIBTPU_INIT_ARGS for a generation: what flags.tsv has for it.
libtpu_flags() { # GENERATION
    awk -F'\t' -v generation="$1" '!/^#/ && $1 != "generation" && index("," $1 ",", "," generation ",") {
        printf "%s%s", gap, $2; gap = " " }' "$ROOT/launch/flags.tsv"
}

seconds() { awk -v number="$1" -v unit="$2" 'BEGIN { printf "%d", number * unit }'; } # NUMBER UNIT
