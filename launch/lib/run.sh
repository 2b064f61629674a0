# shellcheck shell=bash
# A run on one machine, once: there is no loop here that makes another one. What is lost is said, and the same command goes
# on. The machine ends its own costs (launch/boot.sh), so nothing here has to.

# --- what the workdir says -------------------------------------------------------------------------

# An object of the workdir; nothing if there is none. Returns 1 if the bucket does not answer.
noted() { # NAME
    [[ $WORKDIR == gs://* && ! $DRY_RUN ]] || return 0
    gc storage cat "$WORKDIR/$1" 2>"$SCRATCH/describe" | beginning ||
        grep -qE 'matched no objects|HTTPError 404|404:? No such object' "$SCRATCH/describe"
}

note() { # NAME TEXT
    [[ $WORKDIR == gs://* ]] || return 0
    echo "$2" >"$SCRATCH/$1"
    retry gc storage cp "$SCRATCH/$1" "$WORKDIR/$1" 2>"$SCRATCH/describe" ||
        log "$WORKDIR/$1 could not be written: $(why)"
}

is_done() { [[ $(noted launched_and_done) == "$RUN" ]]; }

# SPENT_MINUTES is what the machines of the run have had.
count_hours() {
    local alive
    alive=$(noted launched_alive) || die "$EXIT_CLOUD" "$WORKDIR cannot be read: $(why)"
    SPENT_MINUTES=$(minutes_in "$alive" "$RUN") ||
        die "$EXIT_CLOUD" "$WORKDIR/launched_alive does not say how long the run has had machines, which --max-hours needs:" \
            "it was not written by a run. Delete it to count from none"
}

# Ends here if the run is done, or has had its hours: less than what a lost machine may not have told of its last minutes is no
# time to begin in another one.
end_if_over() {
    local over=''
    if is_done; then
        over=0
    elif ((SPENT_MINUTES * 60 >= MAX_SECONDS)); then
        over=$EXIT_HOURS
    elif ((SPENT_MINUTES && MAX_SECONDS - SPENT_MINUTES * 60 <= 300)); then
        look
        [[ $OWNER == "$RUN" ]] || over=$EXIT_HOURS
    fi
    [[ $over ]] || return 0
    look # what told this may have ended before its TPU was gone
    [[ $OWNER != "$RUN" || ($over == 0 && ${KEEP:-0} == 1) ]] || delete_resource
    ((over == 0)) ||
        die "$over" "the run has had machines for $SPENT_MINUTES minutes, --max-hours is $MAX_HOURS: a larger one goes on"
    log "run $RUN is done, says $WORKDIR/launched_and_done; delete that to run it again"
    exit 0
}

# Refuses a bucket on another continent than the machine, and says what another region costs. Prices of 2026-09:
# cloud.google.com/storage/pricing, data transfer within Google Cloud.
check_places() {
    local bucket where region=${ZONE%-*}
    for bucket in $(printf '%s\n' "$WORKDIR" "${PLACES[@]}" | sed -n 's|^gs://\([^/]*\).*|\1|p' | sort -u); do
        if ! where=$(gc storage buckets describe "gs://$bucket" '--format=value(location)' 2>"$SCRATCH/describe"); then
            log "where gs://$bucket lies is not known: $(why)"
            continue
        fi
        where=$(tr -cd 'a-zA-Z0-9-' <<<"${where,,}")
        [[ ! $DRY_RUN && $where != "$region" ]] || continue
        bucket="gs://$bucket lies in $where, the machine in $region"
        if [[ $(continent "$where") == "$(continent "$region")" ]]; then
            log "$bucket: each GiB between them costs about \$0.02 to \$0.08"
        else
            bucket+=", which is another continent: each GiB between them costs about \$0.05 to \$0.15"
            [[ ${FAR_BUCKET:-} ]] || die "$EXIT_USAGE" "$bucket. Take a bucket near the zone, or --far-bucket"
            log "$bucket"
        fi
    done
}

# A corpus that is nowhere is found out before a machine is asked for. One that this account may not see, the TPU's may.
check_corpus() {
    local word
    for word in "${PLACES[@]}"; do
        [[ $word != gs://* ]] || gc storage ls "$word/corpus.json" >/dev/null 2>"$SCRATCH/describe" ||
            ! grep -qE 'matched no objects|404' "$SCRATCH/describe" ||
            die "$EXIT_USAGE" "$word has no corpus.json: a directory that bert-jax prepare has made is copied there by" \
                "gcloud storage rsync --recursive runs/corpus $word"
    done
}

continent() { # REGION, or the place of a bucket in several
    case $1 in
        us* | nam* | northamerica-*) echo america ;;
        eu*) echo europe ;;
        asia*) echo asia ;;
        *) echo "${1%%-*}" ;;
    esac
}

# --- the machine -----------------------------------------------------------------------------------

# Waits until the TPU is ready. Takes the one that this run has, asks once where there is none, deletes what is left of one
# that was lost. A cloud that has answered before may be silent for as long as it likes.
ensure_ready() {
    local asked='' errors=0
    look
    while :; do
        say_now
        check_owner
        case $NOW in
            ready) return ;;
            absent)
                [[ ! $asked ]] || die "$EXIT_WAITED" "$NAME was deleted before it was ready"
                ask_for_one # and look
                asked=yes
                continue
                ;;
            dead)
                log "$NAME is lost (${WORDS:-no reason is given}): deleting what is left of it"
                delete_resource
                [[ ! $asked ]] || die "$EXIT_WAITED" "there was no machine: the cloud's words are above, and the same command asks again"
                NOW=absent
                continue
                ;;
            error)
                [[ $ANSWERED ]] || ((++errors < TRIES)) || die "$EXIT_CLOUD" "the cloud does not answer: $(why)"
                [[ $ANSWERED ]] || backoff "$errors"
                ;;
            deleting) ;;
            *) asked=yes ;; # it is waited for
        esac
        pause "$POLL_SECONDS"
        look
    done
}

say_now() { # PREFIX: what the cloud says, if it is new
    local text="${1:-}$NAME: $NOW"
    [[ $NOW != error ]] || text+=" ($(why))"
    [[ $text == "$SAID_LAST" ]] || log "$text"
    SAID_LAST=$text
}
SAID_LAST=''

ask_for_one() {
    local other code try=0
    other=$(elsewhere) || die "$EXIT_CLOUD" "whether other zones have $NAME, the cloud does not say: $(why)"
    [[ ! $other ]] || die "$EXIT_USAGE" "$NAME is in $other already: --zone=$other goes on there, or delete it there"
    while :; do
        code=0
        create_resource || code=$?
        look # the answer may have been lost, and the request be there
        ((code)) && [[ $NOW == absent ]] || break
        ((code != 2 && ++try < TRIES)) || {
            ((code != 3)) || die "$EXIT_CLOUD" "a TPU $NAME is in $ZONE without a queued resource: take another --name, or" \
                "gcloud compute tpus tpu-vm delete $NAME --project=$PROJECT --zone=$ZONE"
            die "$EXIT_CLOUD" "the cloud does not create $NAME; its words are above"
        }
        log "creating failed (try $try), trying again"
        backoff "$try"
    done
    # Somebody else may have looked and asked at the same moment, elsewhere. Whoever sees the other one then withdraws.
    ((code)) || other=$(elsewhere) || other=''
    [[ ! $other ]] || {
        delete_resource
        die "$EXIT_USAGE" "$NAME was asked for in $other at the same moment: withdrawn in $ZONE"
    }
}

# --- the run ---------------------------------------------------------------------------------------

# Sets up all hosts and starts the trainer, unless it runs or is done already.
begin() {
    local all=yes try=1
    ask_trainer || all=''
    check_report
    if grep -q ' running$' <<<"$REPORT"; then
        log "the trainer runs already"
        # What ends its costs may have been told otherwise since.
        tell_cap || log "what ends the costs could not be told to all hosts"
        return
    elif [[ $all && $REPORT ]] && ! grep -qv ' 0$' <<<"$REPORT"; then
        return # it is done
    fi
    log "setting up $HOSTS hosts"
    until setup_hosts; do
        look
        if ((try == 3)) || [[ $NOW != ready ]]; then failed "$EXIT_SETUP" "setting up" && break; fi
        log "try $try failed: $(tr '\n' ';' <<<"${REPORT:-no host answered}")"
        backoff "$((try++))"
    done
    stage || failed "$EXIT_SETUP" "staging"
    start_trainer || failed "$EXIT_CONTACT" "starting"
}

# Ends here if the hosts train another run. After `ask_trainer`.
check_report() {
    ! grep -q ' other$' <<<"$REPORT" || die "$EXIT_USAGE" "another run is running on $NAME; launch/tpu stop ends it"
}

# Ends here, unless somebody else's command has started the trainer meanwhile.
failed() { # CODE WHAT
    local said=${REPORT:-no host answered}
    ! { ask_trainer && grep -q ' running$' <<<"$REPORT"; } || return 0
    look
    ! is_gone || gone
    die "$1" "$2 failed: $(tr '\n' ';' <<<"$said")"
}

# Prints worker 0's log and watches all trainers until none runs.
follow() {
    local ending=0 heard=''
    while :; do
        new_lines
        if ask_trainer; then
            SAID_LAST=''
            check_report
            if [[ $DRY_RUN ]] || ! grep -q ' running$' <<<"$REPORT"; then
                new_lines
                finish "$(verdict)"
            # Some ended and some did not: the others see it within minutes, or hang.
            elif grep -qv ' running$' <<<"$REPORT" && ((++ending > 10)); then
                log "some hosts have ended and others have not: stopping them"
                stop_trainer || true
            fi
        elif ! grep -q ' running$' <<<"$REPORT"; then
            heard=${REPORT:-$heard}
            look
            say_now "not all hosts answer; "
            REPORT=$heard
            ! is_gone || gone
        fi
        pause "$POLL_SECONDS"
    done
}

# What worker 0's log has had since line AT.
AT=-
new_lines() {
    local said
    [[ ! $DRY_RUN ]] || return 0
    said=$(tpu_ssh 120 0 "$(on_host) since $AT" 2>/dev/null | tr -cd '\n\t\040-\377') ||
        return 0
    [[ ${said##*$'\n'} =~ ^@bert-jax-at\ ([0-9]{1,15})$ ]] || return 0
    AT=${BASH_REMATCH[1]}
    printf '%s' "${said%"${said##*$'\n'}"}"
}

# The machine is gone. What its hosts said last, in REPORT, may be an end that the same command would only meet again.
gone() {
    local last
    last=$(verdict)
    if is_done; then finish 0; fi
    [[ $(meaning "$last") != stop ]] || finish "$last"
    [[ $NOW != dead ]] || delete_resource
    die "$EXIT_GONE" "the machine is gone: the same command goes on. Its last words: gcloud storage cat '$WORKDIR/logs/*'"
}

finish() { # CODE; none is that of a dry run
    set -- "${1:-0}"
    log "the trainer ended with $1: $(meaning "$1")"
    look # whether there is a machine yet
    case $(meaning "$1") in
        'done')
            note launched_and_done "$RUN"
            [[ ! $LEFT && ! $DRY_RUN || ${KEEP:-0} == 1 ]] || delete_resource
            ;;
        stop) log "the same command would meet the same error; launch/tpu logs has its words" ;;
        *)
            ! is_gone || gone
            log "the same command goes on"
            ;;
    esac
    exit "$1"
}

run_all() {
    log "run $RUN: pretrain ${ARGUMENTS[*]}"
    count_hours
    end_if_over
    check_places
    check_corpus
    take_checkout
    ensure_ready
    begin
    follow
}
