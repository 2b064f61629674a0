# shellcheck shell=bash
# A Cloud TPU as a queued resource: what state it is in, create, delete, and commands on all its hosts.
# Needs common.sh, PROJECT, ZONE, NAME and the row of the accelerator.

DRY_STATE=ABSENT # what a dry run takes for the state; creating sets it
ZONES=()         # check_settings fills it
SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT

# One slice is a node of the resource's own name; several are NAME-0, NAME-1, ...
nodes() {
    if ((SLICES == 1)); then echo "$NAME"; else seq -f "$NAME-%g" 0 $((SLICES - 1)); fi
}

describe() { # FORMAT NOUN NAME -> its state; ABSENT; or ERROR, with gcloud's words in $SCRATCH/describe
    local format=$1 code=0 state
    shift
    state=$(gc compute tpus "$1" describe "$2" "--zone=$ZONE" "--format=$format" 2>"$SCRATCH/describe") || code=$?
    if [[ $DRY_RUN ]]; then
        echo "$DRY_STATE"
        return
    elif ((code == 0)); then
        echo "${state:-ERROR}" # an answer without a state is none
    elif grep -q NOT_FOUND "$SCRATCH/describe"; then
        echo ABSENT
    else
        echo ERROR
        return
    fi
    touch "$SCRATCH/answered" # the cloud can be reached, and knows us
}

# One word for the resource and its nodes together: absent, queued (nothing was given yet), waiting (it is being made,
# repaired or deleted), ready, dead, error (the cloud did not answer), or unknown:STATE. A preempted node can lie in a
# resource that still calls itself active.
condition() {
    local state node
    state=$(describe 'value(state.state)' queued-resources "$NAME")
    case $state in
        ABSENT) echo absent && return ;;
        ERROR) echo error && return ;;
        ACCEPTED | WAITING_FOR_RESOURCES) echo queued && return ;;
        CREATING | PROVISIONING | DELETING) echo waiting && return ;;
        FAILED | SUSPENDING | SUSPENDED) echo dead && return ;;
        ACTIVE) ;;
        *) echo "unknown:$state" && return ;;
    esac
    for node in $(nodes); do
        state=$(describe 'value(state)' tpu-vm "$node")
        case $state in
            READY | ACTIVE) ;; # ACTIVE is what a dry run says
            CREATING | STARTING | RESTARTING | REPAIRING | REIMAGING) echo waiting && return ;;
            ABSENT | PREEMPTED | TERMINATED | STOPPED | STOPPING | DELETING) echo dead && return ;;
            ERROR) echo error && return ;;
            *) echo "unknown:$state" && return ;;
        esac
    done
    echo ready
}

# gcloud's words for what it could not do; and what to do about a login that has expired.
why() {
    local words
    words=$(grep -v '^ *$' "$SCRATCH/describe" 2>/dev/null | tail -n 1) || true
    if grep -qE 'Reauthentication|refreshing your current auth|gcloud auth login|UNAUTHENTICATED|invalid_grant' \
        "$SCRATCH/describe" 2>/dev/null; then
        words="the login has expired or there is none: gcloud auth login"
    fi
    printf '%s' "$words"
}

# Whether the cloud has answered this process before. Until then an error is probably a setting that is wrong, and worth
# an end; later it is an outage, and worth patience.
has_answered() { [[ -e $SCRATCH/answered ]]; }

# With several zones: the one that has the resource already, if any. A zone that does not answer may have it, and in
# another one a second resource would be made.
find_zone() {
    local zone state try
    ((${#ZONES[@]} > 1)) && [[ ! $DRY_RUN ]] || return 0
    for zone in "${ZONES[@]}"; do
        ZONE=$zone
        for ((try = 1; ; try++)); do
            state=$(describe 'value(state.state)' queued-resources "$NAME")
            [[ $state == ERROR ]] || break
            ((try < ${CLOUD_TRIES:-5})) || die "$EXIT_CLOUD" "whether $ZONE has $NAME, the cloud does not say: $(why)"
            backoff "$try"
        done
        [[ $state == ABSENT ]] || return 0
    done
    ZONE=${ZONES[0]}
}

# In all zones: one may have been left behind.
delete_everywhere() {
    for ZONE in "${ZONES[@]}"; do delete_resource; done
}

next_zone() {
    local i
    ((${#ZONES[@]} > 1)) || return 0
    for ((i = 0; i < ${#ZONES[@]}; i++)); do [[ ${ZONES[i]} != "$ZONE" ]] || break; done
    ZONE=${ZONES[(i + 1) % ${#ZONES[@]}]}
    log "next zone: $ZONE"
}

# Asks for the resource, once. Returns 1 if the cloud refuses, and 2 if it will refuse that for ever.
create_resource() {
    local more code=0 command=(compute tpus queued-resources create "$NAME")
    # The flag exists on the alpha track only. There gcloud 528 adds a provisioning model to every request: standard, whatever
    # --spot and --reserved say, unless it is told.
    [[ ! ${AUTOCHECKPOINT:-} ]] || command=(alpha "${command[@]}" --autocheckpoint-enabled)
    if ((SLICES == 1)); then
        command+=("--node-id=$NAME")
    else
        command+=("--node-count=$SLICES" "--node-prefix=$NAME")
    fi
    command+=("--zone=$ZONE" "--accelerator-type=$TYPE" "--runtime-version=$RUNTIME")
    case $CAPACITY in
        spot) command+=(--spot) && [[ ! ${AUTOCHECKPOINT:-} ]] || command+=(--provisioning-model=spot) ;;
        reserved) command+=(--reserved) && [[ ! ${AUTOCHECKPOINT:-} ]] || command+=(--provisioning-model=reservation-bound) ;;
    esac
    [[ ! ${VALID_UNTIL_DURATION:-} ]] || command+=("--valid-until-duration=$VALID_UNTIL_DURATION")
    # Several hosts can have a disk together only to read it.
    [[ ! ${DATA_DISK:-} ]] ||
        command+=("--data-disk=source=projects/$PROJECT/zones/$ZONE/disks/$DATA_DISK,mode=read-only")
    read -ra more <<<"${CREATE_FLAGS:-}"
    command+=("${more[@]}")
    gc "${command[@]}" 2>"$SCRATCH/create" || code=$?
    DRY_STATE=ACTIVE
    if ((code == 0)) || grep -q ALREADY_EXISTS "$SCRATCH/create"; then
        log "asked for $NAME in $ZONE: $SLICES x $TYPE ($TOPOLOGY, $HOSTS hosts each), $CAPACITY"
        return
    fi
    sed 's/^/    /' "$SCRATCH/create" >&2
    ! grep -qE 'PERMISSION_DENIED|INVALID_ARGUMENT|UNAUTHENTICATED|unrecognized arguments|Invalid choice' "$SCRATCH/create" ||
        return 2
    return 1
}

# Deletes the resource with its nodes and waits until it is gone: a failed or suspended one keeps its quota until then. A
# cloud that does not answer is waited for.
delete_resource() {
    local try=0 state
    while ((try < ${DELETE_POLLS:-60})); do
        state=$(describe 'value(state.state)' queued-resources "$NAME")
        if [[ $state == ABSENT && ! $DRY_RUN ]]; then
            log "$NAME is gone"
            return
        elif [[ $state == ERROR ]] && has_answered; then
            log "$NAME is to be deleted, and the cloud does not answer: $(why)"
        elif [[ $state == ERROR && $(why) == *"gcloud auth login"* ]]; then
            die "$EXIT_CLOUD" "$NAME is NOT deleted, and costs on: $(why), and then the same command"
        else
            try=$((try + 1))
            [[ $state == DELETING ]] ||
                gc compute tpus queued-resources delete "$NAME" "--zone=$ZONE" --force 2>"$SCRATCH/delete" ||
                grep -q NOT_FOUND "$SCRATCH/delete" || log "deleting failed: $(tail -n 1 "$SCRATCH/delete")"
        fi
        if [[ $DRY_RUN ]]; then
            DRY_STATE=ABSENT
            return
        fi
        pause "$POLL_SECONDS"
    done
    die "$EXIT_CLOUD" "$NAME is still there after ${DELETE_POLLS:-60} tries to delete it"
}

# --- hosts ---------------------------------------------------------------------------------------

# gcloud's ssh to several hosts refuses to begin where an ssh-agent runs that has keys, and not Google's: the usual laptop.
forget_agent() {
    local key
    [[ ${SSH_AUTH_SOCK:-} ]] || return 0
    key=$(ssh-keygen -lf "$HOME/.ssh/google_compute_engine.pub" 2>/dev/null | cut -d ' ' -f 2) || true
    if [[ ! $key ]] || ! ssh-add -l 2>/dev/null | grep -qF "$key"; then unset SSH_AUTH_SOCK; fi
}

# gcloud's ssh or scp, within SECONDS. A tunnel for hosts without external addresses exists on the alpha track only.
tpu_vm() { # SECONDS ssh|scp NODE OPTION...
    local seconds=$1 verb=$2 track=() flags=()
    shift 2
    read -ra flags <<<"${SSH_FLAGS:-}"
    # An option of ssh itself has another name for scp.
    [[ $verb != scp ]] || flags=("${flags[@]/#--ssh-flag=/--scp-flag=}")
    if [[ ${IAP:-} ]]; then
        track=(alpha) flags+=(--tunnel-through-iap)
    fi
    run timeout --foreground --kill-after=10 "$seconds" gcloud --quiet "--project=$PROJECT" "${track[@]}" \
        compute tpus tpu-vm "$verb" "$@" "--zone=$ZONE" "${flags[@]}"
}

tpu_ssh() { # SECONDS NODE WORKER COMMAND
    tpu_vm "$1" ssh "$2" "--worker=$3" --ssh-flag=-oConnectTimeout=30 --ssh-flag=-oServerAliveInterval=30 "--command=$4"
}

# Runs a command line on every host of every slice at once, within SECONDS. Each host is to print a line
# "@bert-jax HOST WORD"; they end up in REPORT as "HOST WORD", and all else that was printed goes to stdout.
# Returns 255 if fewer hosts answered than there are.
ask_workers() { # SECONDS COMMAND
    local node job jobs=()
    for node in $(nodes); do
        tpu_ssh "$1" "$node" all "$2" >"$SCRATCH/ssh.$node" 2>&1 &
        jobs+=($!)
        [[ ! $DRY_RUN ]] || wait $!
    done
    for job in "${jobs[@]}"; do wait "$job" || true; done
    REPORT=''
    [[ ! $DRY_RUN ]] || return 0
    for node in $(nodes); do
        # Hosts print at once: a line may begin within another's.
        REPORT+=$(sed -nE 's/.*@bert-jax ([^ ]+) ([a-z0-9]+)$/\1 \2/p' "$SCRATCH/ssh.$node")$'\n'
        sed '/@bert-jax /d' "$SCRATCH/ssh.$node"
    done
    REPORT=$(sed '/^$/d' <<<"$REPORT" | sort -u)
    (($(grep -c . <<<"$REPORT") >= SLICES * HOSTS)) || return 255
}

# The same, where a host's word is the command's exit code. Returns 1 if all answered and some code is not 0.
on_workers() { # SECONDS COMMAND
    ask_workers "$1" "$2; code=\$?; echo \"@bert-jax \$(hostname) \$code\"" || return
    ! grep -qv ' 0$' <<<"${REPORT:- 0}"
}

to_workers() { # FILE: to the home directory of every host
    local node
    for node in $(nodes); do
        retry "${CLOUD_TRIES:-5}" tpu_vm "${COPY_SECONDS:-600}" scp "$1" "$node:" --worker=all >"$SCRATCH/scp" 2>&1 || {
            log "copying to $node failed: $(tail -n 1 "$SCRATCH/scp")"
            return 1
        }
    done
}
