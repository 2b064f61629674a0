# shellcheck shell=bash
# The settings of a run: which there are, what they may be, and a file of them. Needs common.sh.

# What a run is: each is an option of launch/tpu, too (NAME is --name). Then what a single command asks for.
RUN_SETTINGS=(PROJECT ZONE NAME TYPE CAPACITY CONFIG CORPUS WORKDIR MAX_HOURS KEEP VALID_UNTIL_DURATION IAP NEW_CHECKOUT FAR_BUCKET
    DRY_RUN SETTINGS TAIL OUTPUT CHECKPOINTS)
# What is seldom changed.
TUNING_SETTINGS=(START_MINUTES END_MINUTES CREATE_FLAGS SSH_FLAGS DISTRIBUTED COMPILATION_CACHE LIBTPU_FLAGS BERT_JAX_HOME
    CHECK_CHIPS DOCTOR SECRETS)

# Numbers are numbers, names are names, and places in a bucket lead nowhere else, before anything counts with them or goes
# there.
check_values() {
    local name
    check_table <<'VALUES'
PROJECT [a-z0-9]([a-z0-9.:-]{0,99}[a-z0-9])? the project's id, of small letters, digits and dashes
ZONE [a-z0-9-]+ one zone, such as europe-west4-b; engines try several (docs/engines.md)
NAME [a-z]([a-z0-9-]{0,40}[a-z0-9])? small letters, digits and dashes
CAPACITY on-demand|spot|reserved|flex-start one of on-demand, spot, reserved, flex-start
MAX_HOURS [0-9]{0,5}[1-9][0-9]{0,4}(\.[0-9]{1,9})?|0\.0{0,8}[1-9][0-9]{0,8} a number of hours, more than none; without it there are 24
VALID_UNTIL_DURATION [1-9][0-9]{0,8}[smhd] a number and s, m, h or d, such as 12h
KEEP [01] 0 or 1
DOCTOR [01] 0 or 1
CHECK_CHIPS [01] 0 or 1
START_MINUTES [0-9]{0,8}[1-9][0-9]{0,8}(\.[0-9]{1,9})?|0\.0{0,8}[1-9][0-9]{0,8} a number, more than none
END_MINUTES [0-9]{1,9}(\.[0-9]{1,9})? a number
TAIL [0-9]{1,9} a whole number
BERT_JAX_HOME [A-Za-z0-9_./][A-Za-z0-9_./-]* letters, digits and _ . / - only
VALUES
    [[ /${BERT_JAX_HOME:-x}/ != */../* ]] || die "$EXIT_USAGE" "BERT_JAX_HOME $BERT_JAX_HOME has .. in it"
    check_flags DRY_RUN IAP NEW_CHECKOUT FAR_BUCKET CHECKPOINTS
    [[ ! ${CORPUS:-} ]] || corpora corpus
    for name in WORKDIR COMPILATION_CACHE; do
        [[ ${!name:-} != *://* ]] || is_place "${!name}" ||
            die "$EXIT_USAGE" "$name ${!name@Q}: write a place in a bucket as gs://BUCKET/PATH"
    done
    # Names of secrets, which only the trainer is to see: a file of NAME=value lines.
    [[ ! ${SECRETS:-} ]] || [[ -f $SECRETS && -r $SECRETS && $(lines_of "$SECRETS" | grep -cvE '^[A-Z][A-Z0-9_]*=|^#|^$') == 0 ]] ||
        die "$EXIT_USAGE" "SECRETS=${SECRETS@Q}: a file, and its lines are NAME=value, such as WANDB_API_KEY=..."
}

# Prints the lines of a file of NAME=value lines, without quotes around a value, and without what editors on Windows add.
lines_of() { # FILE
    local text
    while IFS= read -r text || [[ $text ]]; do
        text=${text#$'\xef\xbb\xbf'} text=${text%$'\r'}
        [[ ! $text =~ ^([^=]*=)\"([^\"]*)\"$ && ! $text =~ ^([^=]*=)\'([^\']*)\'$ ]] || text=${BASH_REMATCH[1]}${BASH_REMATCH[2]}
        printf '%s\n' "$text"
    done <"$1"
}

# Reads a file of NAME=value lines, which nothing executes. A name that means nothing here is refused: a misspelt MAX_HOURS
# would cost money. Google's own programs are told an account and a configuration, by name. All else of them, and flags that are
# not known to be harmless, could make ssh, gcloud or a host execute something, or talk to another cloud (CLOUDSDK_CONFIG is a
# folder whose virtenv gcloud sources): these are for the environment of whoever starts this.
read_settings() { # FILE
    local line=0 text name value near word words
    local request='data-disk|labels|network|reservation|scopes|service-account|subnetwork|tags'
    local -A harmless=(
        [SSH_FLAGS]='--internal-ip|--ssh-flag=-([46Cv]|o(Compression|ConnectTimeout|Port|ServerAliveInterval)=[A-Za-z0-9]+)'
        [CREATE_FLAGS]="--(autocheckpoint-enabled|internal-ips|($request)=.*)"
        [DISTRIBUTED]='--(distributed|coordinator|num-processes|process-id)(=.*)?|[^-].*'
    )
    local known=" ${RUN_SETTINGS[*]} ${TUNING_SETTINGS[*]} "
    [[ -f $1 && -r $1 ]] || die "$EXIT_USAGE" "--settings $1: no such file, or it may not be read"
    while IFS= read -r text; do
        line=$((line + 1))
        [[ ! $text =~ ^[[:space:]]*(#.*)?$ ]] || continue
        [[ $text =~ ^(export )?([A-Z][A-Z0-9_]*)=(.*)$ ]] || die "$EXIT_USAGE" "$1, line $line: its lines are NAME=value, without blanks around ="
        name=${BASH_REMATCH[2]} value=${BASH_REMATCH[3]}
        if [[ $name == CLOUDSDK_CORE_ACCOUNT || $name == CLOUDSDK_ACTIVE_CONFIG_NAME ]]; then
            export "$name=$value"
        elif [[ $name =~ ^(CLOUDSDK_|GOOGLE_|OUTPUT$) ]]; then
            die "$EXIT_USAGE" "$1, line $line: a file may not set $name: set it in the environment"
        elif [[ $known == *" $name "* ]]; then
            read -ra words <<<"${harmless[$name]:+$value}"
            for word in "${words[@]}"; do
                [[ $word =~ ^(${harmless[$name]})$ ]] ||
                    die "$EXIT_USAGE" "$1, line $line: a file may not put ${word@Q} into $name: set it in the environment"
            done
            printf -v "$name" %s "$value"
        else
            near=$(compgen -W "$known" -- "${name:0:5}" | tr '\n' ' ') || true
            die "$EXIT_USAGE" "$1, line $line: there is no setting $name${near:+; did you mean ${near% }?}; docs/launch.md has them"
        fi
    done < <(lines_of "$1")
}
