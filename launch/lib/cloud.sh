# shellcheck shell=bash
# A Cloud TPU as a queued resource: what state it is in, create, delete, and commands on all its hosts.
# Needs common.sh, PROJECT, ZONE, NAME and the row of the accelerator.

DRY_STATE=ABSENT # what a dry run takes for the state; creating sets it
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
    elif ((code == 0)); then
        echo "${state:-EMPTY}"
    elif grep -q NOT_FOUND "$SCRATCH/describe"; then
        echo ABSENT
    else
        echo ERROR
    fi
}

# One word for the resource and its nodes together: absent, waiting, ready, dead, error (the cloud did not answer), or
# unknown:STATE. A preempted node can lie in a resource that still calls itself active.
condition() {
    local state node
    state=$(describe 'value(state.state)' queued-resources "$NAME")
    case $state in
        ABSENT) echo absent && return ;;
        ERROR) echo error && return ;;
        CREATING | ACCEPTED | PROVISIONING | WAITING_FOR_RESOURCES | DELETING) echo waiting && return ;;
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

# Asks for the resource. Capacity that is missing now is asked for again; what will not change ends with EXIT_CLOUD.
create_resource() {
    local try code command=(compute tpus queued-resources create "$NAME")
    # The flag exists on the alpha track only.
    [[ ! ${AUTOCHECKPOINT:-} ]] || command=(alpha "${command[@]}" --autocheckpoint-enabled)
    if ((SLICES == 1)); then
        command+=("--node-id=$NAME")
    else
        command+=("--node-count=$SLICES" "--node-prefix=$NAME")
    fi
    command+=("--zone=$ZONE" "--accelerator-type=$TYPE" "--runtime-version=$RUNTIME")
    case $CAPACITY in
        on-demand) ;;
        spot) command+=(--spot) ;;
        reserved) command+=(--reserved) ;;
        *) die "$EXIT_USAGE" "--capacity $CAPACITY: one of on-demand, spot, reserved" ;;
    esac
    read -ra more <<<"${CREATE_FLAGS:-}"
    command+=("${more[@]}")
    for ((try = 1; ; try++)); do
        code=0
        gc "${command[@]}" 2>"$SCRATCH/create" || code=$?
        DRY_STATE=ACTIVE
        if ((code == 0)) || grep -q ALREADY_EXISTS "$SCRATCH/create"; then
            log "asked for $NAME: $SLICES x $TYPE ($TOPOLOGY, $HOSTS hosts each), $CAPACITY"
            return
        fi
        sed 's/^/    /' "$SCRATCH/create" >&2
        if ((try >= ${CLOUD_TRIES:-5})) ||
            grep -qE 'PERMISSION_DENIED|INVALID_ARGUMENT|UNAUTHENTICATED|unrecognized arguments|Invalid choice' "$SCRATCH/create"; then
            die "$EXIT_CLOUD" "the cloud does not create $NAME; its words are above"
        fi
        log "creating failed (try $try), trying again"
        backoff "$try"
    done
}

# Deletes the resource with its nodes and waits until it is gone: a failed or suspended one keeps its quota until then.
delete_resource() {
    local try state
    for ((try = 1; try <= ${DELETE_POLLS:-60}; try++)); do
        state=$(describe 'value(state.state)' queued-resources "$NAME")
        if [[ $state == ABSENT && ! $DRY_RUN ]]; then
            log "$NAME is gone"
            return
        elif [[ $state != DELETING ]]; then
            gc compute tpus queued-resources delete "$NAME" "--zone=$ZONE" --force 2>"$SCRATCH/delete" || {
                grep -q NOT_FOUND "$SCRATCH/delete" || log "deleting failed: $(tail -n 1 "$SCRATCH/delete")"
            }
        fi
        if [[ $DRY_RUN ]]; then
            DRY_STATE=ABSENT
            return
        fi
        pause "$POLL_SECONDS"
    done
    die "$EXIT_CLOUD" "$NAME is still there after ${DELETE_POLLS:-60} tries to delete it"
}

ssh_flags=(--strict-host-key-checking=no --ssh-flag=-oConnectTimeout=30 --ssh-flag=-oServerAliveInterval=30)

# Runs a command line on every host of every slice at once, within SECONDS. Each host is to print a line
# "@bert-jax HOST WORD"; they end up in REPORT as "HOST WORD", and all else that was printed goes to stdout.
# Returns 255 if fewer hosts answered than there are.
ask_workers() { # SECONDS COMMAND
    local node job jobs=()
    for node in $(nodes); do
        run timeout --foreground --kill-after=10 "$1" \
            gcloud --quiet "--project=$PROJECT" compute tpus tpu-vm ssh "$node" "--zone=$ZONE" --worker=all \
            "${ssh_flags[@]}" "--command=$2" >"$SCRATCH/ssh.$node" 2>&1 &
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
        retry "${CLOUD_TRIES:-5}" run timeout --foreground --kill-after=10 "${COPY_SECONDS:-600}" \
            gcloud --quiet "--project=$PROJECT" compute tpus tpu-vm scp "$1" "$node:" "--zone=$ZONE" --worker=all \
            --strict-host-key-checking=no >"$SCRATCH/scp" 2>&1 || {
            log "copying to $node failed: $(tail -n 1 "$SCRATCH/scp")"
            return 1
        }
    done
}
