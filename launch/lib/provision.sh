# shellcheck shell=bash
# From nothing to a TPU that is ready: asks, waits, goes from zone to zone, replaces what is dead. Needs cloud.sh.

# Waits until the TPU is ready; asks for it where there is none, and replaces one that is dead. A state that nobody has
# heard of is dead after UNKNOWN_POLLS looks at it. A cloud that has answered before may be silent for as long as it likes.
ensure_ready() {
    local now last='' unknown=0 errors=0 dead=0 refused=0 began=$SECONDS asked=$SECONDS code
    while :; do
        now=$(condition)
        [[ $now == "$last" ]] || log "$NAME: $now$([[ $now != error ]] || printf ' (%s)' "$(why)")"
        last=$now
        [[ $now == error ]] || errors=0
        [[ $now == unknown:* ]] || unknown=0
        case $now in
            ready) return ;;
            absent)
                code=0
                create_resource || code=$?
                asked=$SECONDS
                ((code > 0)) || continue
                # The answer may have been lost, and the request be there.
                [[ $(condition) == absent ]] || continue
                # What will not change counts as all the tries of its zone.
                refused=$((refused + (code == 2 ? ${CLOUD_TRIES:-5} : 1)))
                ((refused < ${CLOUD_TRIES:-5} * ${#ZONES[@]})) ||
                    die "$EXIT_CLOUD" "the cloud does not create $NAME; its words are above"
                log "creating failed (try $refused), trying again"
                next_zone
                backoff "$refused"
                continue
                ;;
            queued | waiting)
                ((${PROVISION_SECONDS:-0} == 0 || SECONDS - began < PROVISION_SECONDS)) ||
                    die "$EXIT_WAITED" "no machine after $PROVISION_SECONDS s; the request stays (launch/tpu delete)"
                if [[ $now == queued ]] && ((${#ZONES[@]} > 1 && SECONDS - asked >= ${ZONE_SECONDS:-1800})); then
                    log "$ZONE has had nothing for $((SECONDS - asked)) s: withdrawing the request"
                    delete_resource
                    next_zone
                    continue
                fi
                ;;
            error)
                has_answered || ((++errors < ${CLOUD_TRIES:-5})) ||
                    die "$EXIT_CLOUD" "the cloud does not answer: $(why)"
                if ! has_answered; then backoff "$errors" && continue; fi
                ;;
            dead | unknown:*)
                if [[ $now == dead ]] || ((++unknown >= ${UNKNOWN_POLLS:-10})); then
                    if [[ $now != dead && $RUN ]] && { ask_trainer || true; } && grep -q ' running$' <<<"$REPORT"; then
                        log "$NAME: $now, and its hosts train"
                        return
                    fi
                    ((++dead <= ${MAX_FAILURES:-5})) ||
                        die "$EXIT_CLOUD" "$NAME was made and failed $((dead - 1)) times; last: $(failure)"
                    log "$NAME is lost ($(failure)): deleting it and asking again"
                    delete_resource
                    if [[ ${VALID_UNTIL_DURATION:-} ]] &&
                        ((SECONDS - asked >= $(seconds_of "$VALID_UNTIL_DURATION") && ${#ZONES[@]} == 1)); then
                        die "$EXIT_WAITED" "no machine within --valid-until-duration $VALID_UNTIL_DURATION"
                    fi
                    next_zone
                    backoff "$dead"
                    continue
                fi
                ;;
        esac
        pause "$POLL_SECONDS"
    done
}

# The cloud's own words for a request that failed.
failure() {
    local words
    words=$(gc compute tpus queued-resources describe "$NAME" "--zone=$ZONE" \
        '--format=value(state.failedData.error.message)' 2>/dev/null) || true
    printf '%s' "${words:-no reason is given}"
}
