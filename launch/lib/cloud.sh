# shellcheck shell=bash
# A Cloud TPU as a queued resource: what state it is in, create, delete, and commands on all its hosts.
# Needs common.sh, PROJECT, ZONE, NAME and the row of the accelerator.

DRY_STATE=ABSENT # what a dry run takes for the state; creating sets it
LEFT=''          # whether a machine, or a request for one, is there when this program ends
RUN=''           # which run this is; need_run says
SPENT_MINUTES=0  # how long it has had machines before this one; end_if_over says
SCRATCH=$(mktemp -d)
trap farewell EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Whatever ends this program: what stays costs on, and how that is ended.
farewell() {
    local last=''
    rm -rf "$SCRATCH"
    [[ $LEFT && ! $DRY_RUN ]] || return 0
    [[ ${KEEP:-0} == 1 ]] || last=", or one has ended $END_MINUTES minutes ago"
    log "$NAME is there without this command and costs $(hourly) an hour. It deletes itself when its \
$MAX_HOURS hours are spent, no trainer has begun for $START_MINUTES minutes$last. To end it now: launch/tpu delete \
--project=$PROJECT --zone=$ZONE --name=$NAME --type=$TYPE"
}

hourly() { # in dollars, at the list price in the US
    [[ $CAPACITY == on-demand ]] || printf 'at most '
    [[ ! $ZONE =~ ^(us-south1|europe|asia) ]] || printf 'at US prices '
    awk -v n="$((HOSTS * CHIPS))" -v price="$PRICE" 'BEGIN { printf "$%.2f", n * price }'
}

# What the cloud says of the resource, or of its node, which has its name: SAID is that, ABSENT, or ERROR, with gcloud's words
# in $SCRATCH/describe.
describe() { # FORMAT [tpu-vm]
    local code=0
    SAID=$(gc compute tpus "${2:-queued-resources}" describe "$NAME" "--zone=$ZONE" "--format=$1" 2>"$SCRATCH/describe") || code=$?
    if [[ $DRY_RUN ]]; then
        SAID=$DRY_STATE
    elif ((code)) && grep -q NOT_FOUND "$SCRATCH/describe"; then
        SAID=ABSENT
    elif ((code)) || [[ ! $SAID ]]; then # an answer without a state is none
        SAID=ERROR
    fi
    # The cloud can be reached, and knows us: what fails later is an outage, and worth patience.
    [[ $SAID == ERROR ]] || ANSWERED=1
    # It would say the same each time.
    [[ $SAID != ERROR || $(why) != 'this gcloud'* ]] || die "$EXIT_CLOUD" "$(why)"
}
ANSWERED=''

# One word, NOW, for the resource and its node together: absent, queued (nothing was given yet), waiting (it is being made
# or repaired), ready, deleting, dead, error (the cloud did not answer), or unknown:STATE. A preempted node can lie in a
# resource that still calls itself active. `other` is another run's. OWNER and KIND are the run and the type it was made for,
# WORDS the cloud's own for a request that failed.
look() {
    local state node='tpu.nodeSpec[0].node'
    describe "csv[no-heading](state.state,$node.acceleratorType,$node.labels.bert_jax_run,state.failedData.error.message)"
    # shellcheck disable=SC2034 # run.sh says the last
    IFS=, read -r state KIND OWNER WORDS <<<"$SAID"
    NOW=$(word "$state")
    if [[ $NOW == ready ]]; then
        describe 'value(state)' tpu-vm
        NOW=$(word "$SAID")
        [[ $NOW != absent ]] || NOW=dead
    fi
    [[ ! $RUN || ! $OWNER || $OWNER == "$RUN" ]] || NOW=other
    if is_gone; then LEFT=''; elif [[ $NOW != error ]]; then LEFT=1; fi
}

is_gone() { [[ $NOW =~ ^(absent|deleting|dead|other)$ ]]; }

word() { # STATE of a resource or a node
    case $1 in
        ABSENT) echo absent ;;
        ERROR | '') echo error ;;
        ACTIVE | READY) echo ready ;;
        ACCEPTED | WAITING_FOR_RESOURCES) echo queued ;;
        CREATING | PROVISIONING | STARTING | RESTARTING | REPAIRING | REIMAGING) echo waiting ;;
        DELETING) echo deleting ;;
        FAILED | SUSPENDING | SUSPENDED | PREEMPTED | TERMINATED | STOPPED | STOPPING) echo dead ;;
        *) echo "unknown:$1" ;;
    esac
}

# Ends here where the machine is another run's, or another machine. After `look`.
check_owner() {
    [[ $NOW != other ]] || die "$EXIT_USAGE" "$NAME in $ZONE is run ${OWNER:0:12}'s, and this is $RUN: take another --name"
    [[ ! $KIND || $KIND == "$TYPE" ]] ||
        die "$EXIT_USAGE" "$NAME in $ZONE is a ${KIND:0:20}, not a $TYPE: give --type that, or take another --name"
}

# gcloud's words for what it could not do; and what to do about a login that has expired, or a gcloud that does not know a
# command: 467 brought queued resources, 468 --reserved (its RELEASE_NOTES, March 2024).
why() {
    local said
    said=$(cat "$SCRATCH/describe" 2>/dev/null) || true
    case $said in
        *Reauthentication* | *'refreshing your current auth'* | *'gcloud auth login'* | *UNAUTHENTICATED* | *invalid_grant*)
            printf 'the login has expired or there is none: gcloud auth login' ;;
        *'Invalid choice'* | *'unrecognized arguments'*)
            printf 'this gcloud is too old, 468 or newer is needed: gcloud components update' ;;
        *) grep -v '^ *$' <<<"$said" | tail -n 1 || true ;;
    esac
}

# Writes what ends the costs of the machine, for its hosts (launch/boot.sh).
cap() {
    {
        echo '#!/usr/bin/env bash'
        printf '%s=%q\n' TPU "projects/$PROJECT/locations/$ZONE/$NAME" MAX_SECONDS "$MAX_SECONDS" \
            START_SECONDS "$(seconds "$START_MINUTES" 60)" END_SECONDS "$(seconds "$END_MINUTES" 60)" \
            KEEP "${KEEP:-0}" SPENT_SECONDS "$((SPENT_MINUTES * 60))"
        cat "$ROOT/launch/boot.sh"
    } >"$SCRATCH/boot.sh"
}

# Asks for the resource, once. Returns 1 if the cloud refuses, 2 if it will refuse that for ever, 3 if something has that name.
create_resource() {
    local more code=0 command=(compute tpus queued-resources create "$NAME" "--zone=$ZONE" "--accelerator-type=$TYPE"
        "--runtime-version=$RUNTIME" "--valid-until-duration=$VALID_UNTIL_DURATION" "--node-id=$NAME")
    [[ ! $CAPACITY =~ ^(spot|reserved)$ ]] || command+=("--$CAPACITY")
    # Both are on the alpha track only. There gcloud 528 adds a provisioning model to every request: standard, whatever --spot
    # and --reserved say, unless it is told.
    if [[ $CAPACITY == flex-start || " ${CREATE_FLAGS:-} " == *' --autocheckpoint-enabled '* ]]; then
        command=(alpha "${command[@]}")
        case $CAPACITY in
            reserved) command+=(--provisioning-model=reservation-bound) ;;
            spot | flex-start) command+=("--provisioning-model=$CAPACITY") ;;
        esac
    fi
    # The cloud's own cap, which counts from when the machine is there.
    [[ $CAPACITY != flex-start ]] || command+=("--max-run-duration=$((MAX_SECONDS - SPENT_MINUTES * 60))s")
    cap
    command+=("--metadata-from-file=startup-script=$SCRATCH/boot.sh" ${RUN:+"--labels=bert_jax_run=$RUN"})
    read -ra more <<<"${CREATE_FLAGS:-}"
    LEFT=1 # an answer that is lost leaves a request
    gc "${command[@]}" "${more[@]}" 2>"$SCRATCH/create" || code=$?
    DRY_STATE=ACTIVE
    if ((code == 0)); then
        log "asked for $NAME in $ZONE: $TYPE ($TOPOLOGY, $HOSTS hosts), $CAPACITY, $(hourly) an hour, $MAX_HOURS hours \
at most; a request that waits for $VALID_UNTIL_DURATION is withdrawn"
        return
    fi
    sed 's/^/    /' "$SCRATCH/create" >&2
    ! grep -q ALREADY_EXISTS "$SCRATCH/create" || return 3
    ! grep -qE 'PERMISSION_DENIED|INVALID_ARGUMENT|UNAUTHENTICATED|unrecognized arguments|Invalid choice' "$SCRATCH/create" ||
        return 2
    return 1
}

# Another zone that has a resource of this name; nothing if there is none. Returns 1 if the cloud does not say.
elsewhere() {
    local zones
    zones=$(gc compute tpus queued-resources list --zone=- "--filter=name.basename()=$NAME" '--format=value(name.segment(3))' \
        2>"$SCRATCH/describe") || return 1
    [[ $DRY_RUN ]] || grep -vxF -m 1 "$ZONE" <<<"$zones" | tr -cd 'a-z0-9-' || true
}

# What is added where this zone has no such resource, and another one has: that one costs. After `look`.
but_there() {
    local other=''
    [[ $NOW != absent ]] || other=$(elsewhere) || printf '; whether another zone has one, the cloud does not say'
    [[ ! $other ]] || printf ', and there is one in %s: --zone=%s' "$other" "$other"
}

# Deletes the resource with its nodes and waits until it is gone: a failed or suspended one keeps its quota until then. One
# that lives after another was seen to go is somebody's new one.
delete_resource() {
    local try goes=''
    for ((try = 0; try < 60; try++)); do
        describe 'value(state.state)'
        [[ $SAID != DELETING ]] || goes=1
        if [[ $SAID == ABSENT && ! $DRY_RUN ]] ||
            [[ $goes && $SAID =~ ^(ACCEPTED|CREATING|PROVISIONING|WAITING_FOR_RESOURCES|ACTIVE)$ ]]; then
            LEFT=''
            log "$NAME is gone"
            return
        fi
        [[ $SAID != ERROR || $ANSWERED || $(why) != *"gcloud auth login"* ]] ||
            die "$EXIT_CLOUD" "whether $NAME is there and costs, the cloud does not say: $(why)"
        LEFT=1
        [[ $SAID != ERROR ]] || log "$NAME is to be deleted, and the cloud does not answer: $(why)"
        [[ $SAID == DELETING ]] || gc compute tpus queued-resources delete "$NAME" "--zone=$ZONE" --force 2>"$SCRATCH/delete" ||
            grep -q NOT_FOUND "$SCRATCH/delete" || log "deleting failed: $(tail -n 1 "$SCRATCH/delete")"
        DRY_STATE=ABSENT
        [[ ! $DRY_RUN ]] || return 0
        pause "$POLL_SECONDS"
    done
    die "$EXIT_CLOUD" "$NAME is NOT deleted after $((try + 1)) tries, and costs on: the same command goes on"
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
tpu_vm() { # SECONDS ssh|scp OPTION...
    local seconds=$1 verb=$2 flags=()
    shift 2
    read -ra flags <<<"${SSH_FLAGS:-} ${IAP:+--tunnel-through-iap}"
    # An option of ssh itself has another name for scp.
    [[ $verb != scp ]] || flags=("${flags[@]/#--ssh-flag=/--scp-flag=}")
    run timeout --foreground --kill-after=10 "$seconds" gcloud --quiet "--project=$PROJECT" ${IAP:+alpha} \
        compute tpus tpu-vm "$verb" "$@" "--zone=$ZONE" "${flags[@]}"
}

tpu_ssh() { # SECONDS WORKER COMMAND
    tpu_vm "$1" ssh "$NAME" "--worker=$2" --ssh-flag=-oConnectTimeout=30 --ssh-flag=-oServerAliveInterval=30 "--command=$3"
}

# Runs a command line on every host at once, within SECONDS. Each host is to print a line "@bert-jax HOST WORD"; they end up
# in REPORT as "HOST WORD", and all else that was printed goes to stdout. Returns 255 if fewer hosts answered than there are.
ask_workers() { # SECONDS COMMAND
    REPORT=''
    tpu_ssh "$1" all "$2" >"$SCRATCH/ssh" 2>&1 &
    wait $! || true # a signal is heard at once
    [[ ! $DRY_RUN ]] || return 0
    # Hosts print at once: a line may begin within another's.
    REPORT=$(sed -nE 's/.*@bert-jax ([^ ]+) ([a-z0-9]+)$/\1 \2/p' "$SCRATCH/ssh" | sort -u)
    sed '/@bert-jax /d' "$SCRATCH/ssh"
    [[ ! $REPORT ]] || LEFT=1
    (($(grep -c . <<<"$REPORT") >= HOSTS)) || return 255
}

# The same, where a host's word is the command's exit code. Returns 1 if all answered and some code is not 0.
on_workers() { # SECONDS COMMAND
    ask_workers "$1" "$2; code=\$?; echo \"@bert-jax \$(hostname) \$code\"" || return
    ! grep -qv ' 0$' <<<"${REPORT:- 0}"
}

to_workers() { # FILE...: to the home directory of every host
    retry tpu_vm 600 scp "$@" "$NAME:" --worker=all >"$SCRATCH/scp" 2>&1 && return
    REPORT="copying failed: $(tail -n 1 "$SCRATCH/scp")"
    return 1
}
