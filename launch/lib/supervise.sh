# shellcheck shell=bash
# Keeps one run going on one TPU until it is done, from a machine that is not the TPU. It remembers nothing: what there is
# to do follows from what the cloud and the hosts say, so it may be ended and started again at any time.

# What a trainer's exit code asks for; docs/launch.md has the table.
meaning() { # CODE
    case $1 in
        0) echo 'done' ;;
        2 | 3 | 4 | 5 | 6 | 7) echo stop ;;              # the same would happen again
        42) echo preempted ;;                            # state saved
        134 | 137 | 143 | 200) echo restart ;;           # peer lost, killed, hang
        *) echo crash ;;
    esac
}

# One code for all hosts, from REPORT. The first that says why: a host with bad data ends with 4 and its peers with 134.
verdict() {
    local code kind
    for kind in stop crash preempted restart 'done'; do
        while read -r _ code; do
            if [[ $(meaning "$code") == "$kind" ]]; then
                echo "$code"
                return
            fi
        done <<<"$REPORT"
    done
}

# Waits until the TPU is ready; asks for it where there is none, and replaces one that is dead. A state that nobody has
# heard of is dead after UNKNOWN_POLLS looks at it.
ensure_ready() {
    local now last='' unknown=0 errors=0 dead=0 began=$SECONDS
    while :; do
        now=$(condition)
        [[ $now == "$last" ]] || log "$NAME: $now"
        last=$now
        [[ $now == error ]] || errors=0
        [[ $now == unknown:* ]] || unknown=0
        case $now in
            ready) return ;;
            absent) create_resource && continue ;;
            dead) ;;
            waiting)
                ((${PROVISION_SECONDS:-0} == 0 || SECONDS - began < PROVISION_SECONDS)) ||
                    die "$EXIT_WAITED" "no machine after $PROVISION_SECONDS s; the request stays (launch/tpu delete)"
                ;;
            error)
                ((++errors < ${CLOUD_TRIES:-5})) || die "$EXIT_CLOUD" "the cloud does not answer: $(why)"
                backoff "$errors" && continue
                ;;
            unknown:*) ((++unknown < ${UNKNOWN_POLLS:-10})) || now=dead ;;
        esac
        if [[ $now == dead ]]; then
            ((++dead <= ${MAX_FAILURES:-5})) || die "$EXIT_CLOUD" "$NAME was made and failed $((dead - 1)) times"
            log "$NAME is lost: deleting it and asking again"
            delete_resource
            backoff "$dead"
        else
            pause "$POLL_SECONDS"
        fi
    done
}

why() {
    tail -n 1 "$SCRATCH/describe" 2>/dev/null || true
}

# The mark of a run that is done, beside its checkpoints: a later supervisor then makes no machine for it.
finished() {
    [[ $WORKDIR == gs://* && ! $DRY_RUN ]] || return 1
    [[ $(gc storage cat "$WORKDIR/launched_and_done" 2>/dev/null) == "$RUN" ]]
}

mark_finished() {
    [[ $WORKDIR == gs://* ]] || return 0
    echo "$RUN" >"$SCRATCH/done"
    retry "${CLOUD_TRIES:-5}" gc storage cp "$SCRATCH/done" "$WORKDIR/launched_and_done" ||
        log "the mark could not be written"
}

# Watches the trainers until none runs. OUTCOME is then one exit code, or `lost`: the machine is gone or silent.
watch_trainer() {
    local silent=0 ending=0 now
    while :; do
        if ask_trainer; then
            silent=0
            if [[ $DRY_RUN ]]; then
                OUTCOME=0
                return
            fi
            if ! grep -q ' running$' <<<"$REPORT"; then
                OUTCOME=$(verdict)
                return
            fi
            # Some ended and some did not: the others see it within minutes, or hang.
            if grep -qv ' running$' <<<"$REPORT" && ((++ending > ${ENDING_POLLS:-10})); then
                log "some hosts have ended and others have not: stopping them"
                stop_trainer || true
            fi
        else
            now=$(condition)
            log "not all hosts answer; $NAME: $now"
            if [[ $now == dead || $now == absent ]] || ((++silent >= ${UNKNOWN_POLLS:-10})); then
                OUTCOME=lost
                return
            fi
        fi
        pause "$POLL_SECONDS"
    done
}

# Sets up all hosts and starts the trainer, unless it runs or has ended already. CAUSE says what went wrong.
begin() {
    CAUSE=''
    ask_trainer || REPORT=''
    if grep -q ' other$' <<<"$REPORT"; then
        die "$EXIT_USAGE" "another run is running on $NAME; launch/tpu stop ends it"
    elif grep -q ' running$' <<<"$REPORT"; then
        log "the trainer runs already: watching it"
        return
    elif [[ $REPORT ]] && ! grep -qv ' 0$' <<<"$REPORT"; then
        log "the trainer is done already"
        return
    fi
    log "setting up $((SLICES * HOSTS)) hosts"
    if ! setup_hosts; then
        CAUSE=$EXIT_SETUP
    elif ! stage_corpus; then
        CAUSE=$EXIT_SETUP
    elif ! start_trainer; then
        CAUSE=$EXIT_CONTACT
    fi
    [[ $CAUSE ]] || return 0
    log "failed: $(tr '\n' ';' <<<"${REPORT:-no host answered}")"
    return 1
}

supervise() {
    local failures=0 began OUTCOME CAUSE
    if finished; then
        log "run $RUN is done, says $WORKDIR/launched_and_done; delete that to run it again"
        # The supervisor that wrote the mark may have ended before its TPU was gone.
        [[ ! ${DELETE_WHEN_DONE:-} ]] || delete_resource
        return
    fi
    log "run $RUN: pretrain ${ARGUMENTS[*]}"
    while :; do
        ensure_ready
        if begin; then
            began=$SECONDS
            watch_trainer
            CAUSE=$EXIT_CRASHES
            # A long run clears the account of failures. Longer than a trainer can wait without a step: half an hour for
            # its peers, then four deadlines (an hour) for a compilation that hangs. A silent machine clears nothing.
            [[ $OUTCOME == lost ]] || ((SECONDS - began < ${HEALTHY_SECONDS:-7200})) || failures=0
        else
            OUTCOME=failed
        fi
        case $OUTCOME in
            failed) # preempted meanwhile is nobody's failure
                [[ $(condition) == dead || $(condition) == absent ]] || failures=$((failures + 1))
                ;;
            lost)
                log "the machine is lost"
                case $(condition) in
                    dead | absent) ;;
                    *)
                        CAUSE=$EXIT_CONTACT
                        failures=$((failures + 1))
                        ((failures >= ${MAX_FAILURES:-5})) || delete_resource
                        ;;
                esac
                ;;
            *)
                log "the trainer ended with $OUTCOME: $(meaning "$OUTCOME")"
                case $(meaning "$OUTCOME") in
                    'done')
                        mark_finished
                        [[ ! ${DELETE_WHEN_DONE:-} ]] || delete_resource
                        return
                        ;;
                    stop) die "$OUTCOME" "a restart would meet the same error; launch/tpu logs has its words" ;;
                    preempted) ;;
                    *) failures=$((failures + 1)) ;;
                esac
                ;;
        esac
        ((failures < ${MAX_FAILURES:-5})) || die "$CAUSE" "$failures failures in a row; last: $OUTCOME"
        ((failures == 0)) || backoff "$failures"
    done
}
