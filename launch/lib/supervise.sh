# shellcheck shell=bash
# Keeps one run going on one TPU until it is done, from a machine that is not the TPU. It remembers nothing: what there is
# to do follows from what the cloud, the hosts and the workdir say, so it may be ended and started again at any time.
#
# It deletes a machine that the cloud calls dead, and one that is lost for certain: the cloud calls it ready, its hosts are
# silent, and so is the sign of life that worker 0 leaves in the workdir. Nothing else is a reason: an outage between here
# and there, a login that has expired and a repair are waited for.

# What a trainer's exit code asks for; docs/launch.md has the table.
meaning() { # CODE
    case $1 in
        0) echo 'done' ;;
        2 | 3 | 4 | 5 | 6 | 7 | 8) echo stop ;;          # the same would happen again
        42) echo preempted ;;                            # state saved
        75) echo network ;;                              # it failed for ten minutes; nothing is harmed
        134 | 137 | 143 | 200) echo restart ;;           # peer lost, killed, hang
        *) echo crash ;;
    esac
}

# One code for all hosts, from REPORT. The first that says why: a host with bad data ends with 4 and its peers with 134.
verdict() {
    local code kind
    for kind in stop network crash preempted restart 'done'; do
        while read -r _ code; do
            if [[ $(meaning "$code") == "$kind" ]]; then
                echo "$code"
                return
            fi
        done <<<"$REPORT"
    done
}

# --- what the workdir says -------------------------------------------------------------------------

# An object of the workdir; nothing if there is none. Returns 1 if the bucket does not answer.
noted() { # NAME
    [[ $WORKDIR == gs://* && ! $DRY_RUN ]] || return 0
    gc storage cat "$WORKDIR/$1" 2>"$SCRATCH/describe" | beginning || grep -qE 'matched no|not found|404' "$SCRATCH/describe"
}

# The mark of a run that is done, beside its checkpoints: a later supervisor then makes no machine for it.
mark_finished() {
    [[ $WORKDIR == gs://* ]] || return 0
    echo "$RUN" >"$SCRATCH/done"
    retry "${CLOUD_TRIES:-5}" gc storage cp "$SCRATCH/done" "$WORKDIR/launched_and_done" ||
        log "the mark could not be written"
}

# Whether the machine trains another run by now, which is then said; REPORT has what its hosts say.
is_of_another_run() {
    REPORT=''
    [[ $(condition) == ready ]] || return 1
    ask_trainer || true
    grep -q ' other$' <<<"$REPORT" || return 1
    log "another run is running on $NAME: it is not deleted"
}

# Ends here if the run is done, or has had its hours. Asked before a machine is made: worker 0 may have deleted the last one.
end_if_over() {
    local mark alive minutes errors=0
    while ! { mark=$(noted launched_and_done) && alive=$(noted launched_alive); }; do
        has_answered || ((++errors < ${CLOUD_TRIES:-5})) || die "$EXIT_CLOUD" "$WORKDIR cannot be read: $(why)"
        log "$WORKDIR does not answer: $(why)"
        if has_answered; then pause "$POLL_SECONDS"; else backoff "$errors"; fi
    done
    if [[ $mark && $mark == "$RUN" ]]; then
        log "run $RUN is done, says $WORKDIR/launched_and_done; delete that to run it again"
        # The supervisor that wrote the mark may have ended before its TPU was gone.
        [[ $DELETE_WHEN_DONE != 1 ]] || is_of_another_run || delete_resource
        exit 0
    fi
    [[ $MAX_MINUTES ]] || return 0
    minutes=$(minutes_in "$alive" "$RUN") ||
        die "$EXIT_CLOUD" "$WORKDIR/launched_alive does not say how long the run has had machines, which --max-hours needs:" \
            "it was not written by a run. Delete it to count from none"
    if ((minutes >= MAX_MINUTES)); then
        if ! is_of_another_run; then
            ! grep -q ' running$' <<<"$REPORT" || stop_trainer || true
            delete_resource
        fi
        die "$EXIT_HOURS" "the run has had machines for $minutes minutes, --max-hours is $MAX_HOURS: a larger one goes on"
    fi
}

# Whether worker 0 has left a new sign of life in the workdir since this was last asked. Returns 2 if nobody can say.
SIGN=''
is_alive() {
    local before=$SIGN
    [[ $WORKDIR == gs://* ]] || return 2
    SIGN=$(noted launched_alive) || { SIGN=$before && return 2; }
    [[ $SIGN != "$before" ]]
}

# --- the run ---------------------------------------------------------------------------------------

# Watches the trainers until none runs. OUTCOME is then one exit code; or `lost`: the machine is gone, or silent for
# certain; or `silent`: it is, and nothing can tell whether it trains.
watch_trainer() {
    local silent=0 silent_since=0 ending=0 now code
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
        elif grep -q ' running$' <<<"$REPORT"; then
            # The trainers of a host that is gone end by themselves within minutes. While some train, all do.
            log "not all hosts answer; those that do are training"
            silent=0
        else
            now=$(condition)
            log "no host says that it trains; $NAME: $now$([[ $now != error ]] || printf ' (%s)' "$(why)")"
            case $now in
                dead | absent)
                    OUTCOME=lost
                    return
                    ;;
                ready) silent=$((silent + 1)) ;;
                *) silent=0 ;; # nobody knows, or it is being repaired
            esac
            if ((silent == 1)); then
                silent_since=$SECONDS
                is_alive || true # what a later sign is compared with
            elif ((silent == ${UNKNOWN_POLLS:-10})); then
                log "silent for $silent looks, while the cloud calls it ready: one more look"
            # However quick the looks: worker 0 leaves a sign every four minutes.
            elif ((silent > ${UNKNOWN_POLLS:-10} && SECONDS - silent_since >= ${SILENT_SECONDS:-720})); then
                OUTCOME=lost
                if [[ $REPORT ]]; then
                    # This network reaches some hosts, whose trainers have ended: the others are gone.
                    case $(meaning "$(verdict)") in
                        stop | 'done') OUTCOME=$(verdict) ;;
                        *) [[ $WORKDIR == gs://* ]] || OUTCOME=silent ;;
                    esac
                    return
                fi
                code=0
                is_alive || code=$?
                case $code in
                    0) log "worker 0 has left a sign of life in $WORKDIR: the hosts are well, but ssh does not reach them" ;;
                    1) return ;;
                    2)
                        if [[ $WORKDIR != gs://* ]]; then
                            OUTCOME=silent
                            return
                        fi
                        ;;
                esac
                silent=0
            fi
        fi
        pause "$POLL_SECONDS"
    done
}

# Sets up all hosts and starts the trainer, unless it runs or has ended already. CAUSE says what went wrong.
begin() {
    local all=yes code=0
    CAUSE=''
    ask_trainer || all=''
    if grep -q ' other$' <<<"$REPORT"; then
        die "$EXIT_USAGE" "another run is running on $NAME; launch/tpu stop ends it"
    elif grep -q ' running$' <<<"$REPORT"; then
        log "the trainer runs already: watching it"
        # What ends its costs may have been told otherwise since.
        tell_guard || log "what ends the costs could not be told to worker 0"
        return
    elif [[ $all && $REPORT ]] && ! grep -qv ' 0$' <<<"$REPORT"; then
        log "the trainer is done already"
        return
    fi
    log "setting up $((SLICES * HOSTS)) hosts"
    if ! setup_hosts; then
        CAUSE=$EXIT_SETUP
    elif ! stage; then
        CAUSE=$EXIT_SETUP
    else
        start_trainer || code=$?
        # A host whose doctor found a fault says so as if its trainer had ended: the watch hears it. Where a host did not
        # answer, the others' doctors may only have missed it.
        [[ $code != 1 || $(meaning "$(verdict)") != stop ]] || return 0
        ((code == 0)) || CAUSE=$EXIT_CONTACT
    fi
    [[ $CAUSE ]] || return 0
    log "failed: $(tr '\n' ';' <<<"${REPORT:-no host answered}")"
    return 1
}

supervise() {
    local failures=0 began now OUTCOME CAUSE
    log "run $RUN: pretrain ${ARGUMENTS[*]}"
    while :; do
        end_if_over
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
            failed)
                # Preempted meanwhile, or out of reach, or being repaired: nobody's failure.
                now=$(condition)
                if [[ $now == ready ]] && ! { [[ ! $REPORT ]] && is_alive; }; then failures=$((failures + 1)); fi
                ;;
            lost)
                log "the machine is lost"
                now=$(condition)
                # Ready and silent for certain. Anything but ready is looked at again before it is touched.
                if [[ $now == ready ]]; then
                    CAUSE=$EXIT_CONTACT
                    failures=$((failures + 1))
                    ((failures >= ${MAX_FAILURES:-5})) || delete_resource
                fi
                ;;
            silent)
                die "$EXIT_CONTACT" "the hosts of $NAME are silent, and the cloud calls it ready. It may be training, and" \
                    "$WORKDIR is in no bucket that could say so: nothing is deleted. If it is lost, launch/tpu delete"
                ;;
            *)
                log "the trainer ended with $OUTCOME: $(meaning "$OUTCOME")"
                case $(meaning "$OUTCOME") in
                    'done')
                        mark_finished
                        [[ $DELETE_WHEN_DONE != 1 ]] || delete_resource
                        return
                        ;;
                    stop)
                        die "$OUTCOME" "a restart would meet the same error; launch/tpu logs has its words." \
                            "$NAME is still there and costs; launch/tpu delete ends that"
                        ;;
                    preempted) ;;
                    network) pause "$POLL_SECONDS" ;; # however long: it is nobody's failure
                    *) failures=$((failures + 1)) ;;
                esac
                ;;
        esac
        ((failures < ${MAX_FAILURES:-5})) || die "$CAUSE" "$failures failures in a row; last: $OUTCOME"
        ((failures == 0)) || backoff "$failures"
    done
}
