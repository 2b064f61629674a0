# shellcheck shell=bash
# The settings of a run: which there are, and a file of them. Needs common.sh.

# What a run is: each is an option of launch/tpu, too (NAME is --name).
RUN_SETTINGS=(PROJECT ZONE NAME TYPE CAPACITY SLICES CONFIG CORPUS WORKDIR INIT_FROM MAX_HOURS DELETE_WHEN_DONE
    AUTOCHECKPOINT VALID_UNTIL_DURATION DATA_DISK IAP DRY_RUN)
# What a single command asks for.
COMMAND_SETTINGS=(STEPS TAIL FOLLOW OUTPUT CHECKPOINTS)
# What is seldom changed: numbers that are counted with, times of programs that take a fraction, and the rest.
COUNT_SETTINGS=(RETRY_MS CLOUD_TRIES PROVISION_SECONDS ZONE_SECONDS SILENT_SECONDS UNKNOWN_POLLS ENDING_POLLS DELETE_POLLS MAX_FAILURES
    HEALTHY_SECONDS)
TIME_SETTINGS=(POLL_SECONDS SETUP_SECONDS STAGE_SECONDS START_SECONDS SSH_SECONDS STOP_SECONDS COPY_SECONDS)
TUNING_SETTINGS=(CREATE_FLAGS SSH_FLAGS DISTRIBUTED COMPILATION_CACHE LIBTPU_FLAGS BERT_JAX_HOME CHECK_CHIPS FREE_CHIPS DOCTOR SECRETS)

# Numbers are numbers, and places in a bucket lead nowhere else, before anything counts with them or goes there.
check_values() {
    local name number
    for name in "${COUNT_SETTINGS[@]}" SLICES TAIL; do
        [[ ${!name:-} ]] || continue
        number=$(whole "${!name}") || die "$EXIT_USAGE" "$name=${!name@Q}: a whole number"
        printf -v "$name" %s "$number"
    done
    for name in "${TIME_SETTINGS[@]}"; do
        [[ ${!name:-1} =~ ^[0-9]{1,9}(\.[0-9]{1,9})?$ ]] ||
            die "$EXIT_USAGE" "$name=${!name@Q}: a number"
    done
    [[ ${MAX_HOURS:-1} =~ ^[0-9]{1,9}(\.[0-9]{1,9})?$ ]] || die "$EXIT_USAGE" "--max-hours $MAX_HOURS: a number of hours"
    need_place --corpus "${CORPUS:-}"
    need_place --workdir "${WORKDIR:-}"
    need_place --init-from "${INIT_FROM:-}"
    need_place COMPILATION_CACHE "${COMPILATION_CACHE:-}"
    [[ ! ${PROJECT:-} || $PROJECT =~ ^[a-z0-9]([a-z0-9.:-]{0,99}[a-z0-9])?$ ]] ||
        die "$EXIT_USAGE" "--project ${PROJECT@Q}: the project's id, of small letters, digits and dashes"
    [[ ! ${ZONE:-} || $ZONE =~ ^[a-z0-9-]+([,\ ]+[a-z0-9-]+)*$ ]] ||
        die "$EXIT_USAGE" "--zone ${ZONE@Q}: zones such as europe-west4-b, with commas between"
    [[ ${DELETE_WHEN_DONE:-0} =~ ^[01]$ ]] || die "$EXIT_USAGE" "DELETE_WHEN_DONE=${DELETE_WHEN_DONE@Q}: 0 or 1"
}

# Names of secrets, which only the trainer is to see: a file of NAME=value lines, taken as they are.
check_secrets() {
    [[ ${SECRETS:-} ]] || return 0
    [[ -f $SECRETS ]] || die "$EXIT_USAGE" "SECRETS=${SECRETS@Q}: no such file"
    ! grep -qvE '^[A-Z][A-Z0-9_]*=|^#|^$' -- "$SECRETS" ||
        die "$EXIT_USAGE" "SECRETS=${SECRETS@Q}: its lines are NAME=value, such as WANDB_API_KEY=..."
}

# Reads a file of NAME=value lines as bash does. A name that means nothing here is refused: a misspelt MAX_HOURS would
# cost money. Names that the file itself uses ($BUCKET) and those of Google's own programs are its own affair.
read_settings() { # FILE
    local name line=0 text said known
    known=" ${RUN_SETTINGS[*]} ${COMMAND_SETTINGS[*]} ${TUNING_SETTINGS[*]} ${COUNT_SETTINGS[*]} ${TIME_SETTINGS[*]} "
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
    ((SLICES > 0)) || die "$EXIT_USAGE" "--slices $SLICES: a number from 1"
    [[ $CAPACITY =~ ^(on-demand|spot|reserved)$ ]] ||
        die "$EXIT_USAGE" "--capacity $CAPACITY: one of on-demand, spot, reserved"
    [[ ${VALID_UNTIL_DURATION:-1h} =~ ^[1-9][0-9]{0,8}[smhd]$ ]] ||
        die "$EXIT_USAGE" "--valid-until-duration $VALID_UNTIL_DURATION: a number and s, m, h or d, such as 12h"
    [[ ${BERT_JAX_HOME:-x} =~ ^[A-Za-z0-9_./][A-Za-z0-9_./-]*$ && /${BERT_JAX_HOME:-x}/ != */../* ]] ||
        die "$EXIT_USAGE" "BERT_JAX_HOME $BERT_JAX_HOME: letters, digits and _ . / - only, and no .."
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
