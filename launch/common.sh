# shellcheck shell=bash
# Functions that launch/tpu, worker.sh and tpu_setup.sh share. Sourced; sets strict mode for the caller.
set -Eeuo pipefail

EXIT_USAGE=2 # wrong option, unknown accelerator, a setting is missing

LAUNCH=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# The installation on a host.
PLACE=${BERT_JAX_HOME:-$HOME/bert-jax}
if [[ $PLACE != /* ]]; then PLACE=$HOME/$PLACE; fi

# Prints the comment at the beginning of the calling script.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

# One line on stderr, without control characters of quoted text.
log() {
    local text=$*
    printf '%s %s\n' "$(date '+%F %T')" "${text//[[:cntrl:]]/ }" >&2
}

die() { # CODE MESSAGE
    local code=$1
    shift
    log "error: $*"
    exit "$code"
}

as_root() { if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi; }

# Returns whether the trainer of this host runs, is being stopped, or is about to be restarted by systemd.
is_training() {
    [[ $(systemctl is-active bert-jax 2>/dev/null) =~ ^(active|activating|reloading|deactivating)$ ]]
}

# Prints one line per accelerator type, tab-separated: TYPE GENERATION RUNTIME HOSTS CHIPS DEVICES BOUNDS TOPOLOGY PRICE. CHIPS
# and DEVICES are those of one host.
accelerators() {
    awk -F'\t' -v OFS='\t' '!/^#/ && $1 != "generation" {
        split($7, side, ",")
        host = side[1] * side[2]
        count = split($10, topologies, " ")
        for (i = 1; i <= count; i++) {
            chips = 1
            for (n = split(topologies[i], side, "x"); n; n--) chips *= side[n]
            print $2 "-" chips * $6, $1, $4, chips / host, host, $8, $7, topologies[i], $5
        }
    }' "$LAUNCH/accelerators.tsv"
}

# Sets TYPE and the columns of `accelerators` as variables. Accepts v5litepod-64 (gcloud), v5e-64, and v5e:8x8 (`bert-jax plan`).
accelerator() { # TYPE
    local row
    row=$(accelerators | awk -F'\t' -v given="$1" '{ number = $1; sub(/.*-/, "", number) }
        given == $1 || given == $2 "-" number || given == $2 ":" $8')
    if [[ ! $row ]]; then
        die "$EXIT_USAGE" "unknown accelerator type '$1'; types: $(accelerators | cut -f 1 | tr '\n' ' ')"
    fi
    # shellcheck disable=SC2034 # read by the scripts that source this file
    IFS=$'\t' read -r TYPE GENERATION RUNTIME HOSTS CHIPS DEVICES BOUNDS TOPOLOGY PRICE <<<"$row"
}

# Prints LIBTPU_INIT_ARGS for a generation, from flags.tsv.
libtpu_flags() { # GENERATION
    awk -F'\t' -v generation="$1" '!/^#/ && $1 != "generation" && index("," $1 ",", "," generation ",") {
        printf "%s%s", gap, $2; gap = " " }' "$LAUNCH/flags.tsv"
}

# Returns whether the text is gs://BUCKET/PATH without `..`, control characters, or characters that gcloud expands.
is_place() { # TEXT
    ((${#1} < 1100)) && [[ $1 =~ ^gs://[a-z0-9][a-z0-9._-]*(/[^/]+)*/?$ && $1/ != */./* && $1/ != */../* && $1 != *[[:cntrl:]\\?#*[]* ]]
}

# Reads corpora, each PLACE or NAME=PLACE as in `bert-jax pretrain --corpus`. CORPORA gets the options for the trainer of a host;
# STAGED gets the place and the local directory of each corpus in a bucket.
read_corpora() { # CORPUS...
    local word place name names=' '
    CORPORA=() STAGED=()
    for word in "$@"; do
        place=${word%/}
        name=${place##*/}
        if [[ $word =~ ^([^/=]+)=(.*)$ ]]; then name=${BASH_REMATCH[1]} place=${BASH_REMATCH[2]%/}; fi
        if [[ $place != /* ]] && ! is_place "$place"; then
            die "$EXIT_USAGE" "--corpus ${word@Q}: give gs://BUCKET/PATH, or an absolute path that exists on the hosts. To upload \
a corpus: gcloud storage rsync --recursive $place gs://BUCKET/PATH"
        fi
        if [[ ! $name =~ ^[A-Za-z0-9_.-]+$ || $name == . || $name == .. || $names == *" $name "* ]]; then
            die "$EXIT_USAGE" "--corpus ${word@Q}: give each corpus a different name of letters, digits and _ . -, as NAME=PLACE"
        fi
        names+="$name "
        if [[ $place == gs://* ]]; then
            word=$PLACE/corpus/$name
            STAGED+=("$place" "$word")
        fi
        CORPORA+=(--corpus "$word")
    done
}

# Prints the exit code that explains the others, from lines HOST CODE: a host with damaged data ends with 4, and its peers with 134.
verdict() { # LINES
    local code rank
    while read -r _ code; do
        case $code in
            [2-8]) rank=1 ;;
            75) rank=2 ;;
            42) rank=4 ;;
            134 | 137 | 143 | 200) rank=5 ;;
            0) rank=6 ;;
            none) rank=5 code=137 ;; # the disk of this host is new
            *) rank=3 ;;
        esac
        echo "$rank $code"
    done <<<"$1" | sort -n | head -n 1 | cut -d ' ' -f 2
}
