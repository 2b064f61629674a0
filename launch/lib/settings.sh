# shellcheck shell=bash
# The settings of a run: which there are, and a file of them. Needs common.sh.

# What a run is: each is an option of launch/tpu, too (NAME is --name).
RUN_SETTINGS=(PROJECT ZONE NAME TYPE CAPACITY SLICES CONFIG CORPUS WORKDIR INIT_FROM MAX_HOURS DELETE_WHEN_DONE
    AUTOCHECKPOINT VALID_UNTIL_DURATION DATA_DISK IAP DRY_RUN)
# What a single command asks for.
COMMAND_SETTINGS=(STEPS TAIL FOLLOW OUTPUT CHECKPOINTS)
# What is seldom changed.
TUNING_SETTINGS=(CREATE_FLAGS SSH_FLAGS DISTRIBUTED COMPILATION_CACHE LIBTPU_FLAGS BERT_JAX_HOME CHECK_CHIPS FREE_CHIPS DOCTOR
    POLL_SECONDS RETRY_MS CLOUD_TRIES PROVISION_SECONDS ZONE_SECONDS SILENT_SECONDS UNKNOWN_POLLS ENDING_POLLS DELETE_POLLS MAX_FAILURES
    HEALTHY_SECONDS SETUP_SECONDS STAGE_SECONDS START_SECONDS SSH_SECONDS STOP_SECONDS COPY_SECONDS)

# Reads a file of NAME=value lines as bash does. A name that means nothing here is refused: a misspelt MAX_HOURS would
# cost money. Names that the file itself uses ($BUCKET) and those of Google's own programs are its own affair.
read_settings() { # FILE
    local name line=0 text said known=" ${RUN_SETTINGS[*]} ${COMMAND_SETTINGS[*]} ${TUNING_SETTINGS[*]} "
    [[ -f $1 ]] || die "$EXIT_USAGE" "--settings $1: no such file"
    # shellcheck disable=SC2094
    while IFS= read -r text || [[ $text ]]; do
        line=$((line + 1))
        [[ $text =~ ^[[:space:]]*(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)(\+?)= ]] || continue
        name=${BASH_REMATCH[2]}
        [[ $known != *" $name "* && ! $name =~ ^(CLOUDSDK|GOOGLE)_ ]] || continue
        grep -qE "\\\$\{?$name\b" "$1" ||
            die "$EXIT_USAGE" "$1, line $line: there is no setting $name$(nearest "$name" "${known[@]}"); launch/tpu help has them"
    done <"$1"
    # First where it can end nothing: a line that is no assignment is a command, which bash would try. Only what bash
    # itself says of a line counts; a $(command) may talk.
    # shellcheck source=/dev/null
    said=$( (source "$1") 2>&1 >/dev/null | grep -m 1 -oE "$(basename "$1"): line [0-9]+: .*") || true
    [[ ! $said ]] || die "$EXIT_USAGE" "$said: its lines are NAME=value, as bash reads them"
    # shellcheck source=/dev/null
    source "$1"
}

nearest() { # NAME "KNOWN..." -> "; did you mean OTHER?" if one is at most two letters away
    tr ' ' '\n' <<<"$2" | awk -v name="$1" '
        function least(a, b) { return a < b ? a : b }
        length($0) {
            for (j = 0; j <= length($0); j++) row[j] = j
            for (i = 1; i <= length(name); i++) {
                before = row[0]; row[0] = i
                for (j = 1; j <= length($0); j++) {
                    differs = substr(name, i, 1) != substr($0, j, 1)
                    next_before = row[j]
                    row[j] = least(least(row[j], row[j - 1]) + 1, before + differs)
                    before = next_before
                }
            }
            if (row[length($0)] <= 2 && (!found || row[length($0)] < distance)) { found = $0; distance = row[length($0)] }
        }
        END { if (found) printf "; did you mean %s?", found }'
}

# Checks what can be checked without asking anybody, and sets what follows from the rest.
# shellcheck disable=SC2153
check_settings() {
    [[ $NAME =~ ^[a-z]([a-z0-9-]{0,40}[a-z0-9])?$ ]] || die "$EXIT_USAGE" "--name $NAME: small letters, digits and dashes"
    [[ $SLICES =~ ^[1-9][0-9]*$ ]] || die "$EXIT_USAGE" "--slices $SLICES: a number from 1"
    [[ $CAPACITY =~ ^(on-demand|spot|reserved)$ ]] ||
        die "$EXIT_USAGE" "--capacity $CAPACITY: one of on-demand, spot, reserved"
    [[ ${VALID_UNTIL_DURATION:-1h} =~ ^[1-9][0-9]*[smhd]$ ]] ||
        die "$EXIT_USAGE" "--valid-until-duration $VALID_UNTIL_DURATION: a number and s, m, h or d, such as 12h"
    [[ ${MAX_HOURS:-1} =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "$EXIT_USAGE" "--max-hours $MAX_HOURS: a number of hours"
    [[ ${BERT_JAX_HOME:-x} =~ ^[A-Za-z0-9_./-]+$ ]] ||
        die "$EXIT_USAGE" "BERT_JAX_HOME $BERT_JAX_HOME: letters, digits and _ . / - only"
    IFS=', ' read -ra ZONES <<<"$ZONE"
    ZONE=${ZONES[0]}
    if [[ ${DATA_DISK:-} ]] && ((${#ZONES[@]} > 1)); then
        die "$EXIT_USAGE" "--data-disk $DATA_DISK lies in one zone: give --zone that one"
    fi
}

seconds_of() { # DURATION, such as 12h
    local number=${1%?}
    case $1 in
        *s) echo "$number" ;;
        *m) echo $((number * 60)) ;;
        *h) echo $((number * 3600)) ;;
        *d) echo $((number * 86400)) ;;
    esac
}
