# shellcheck shell=bash
# What ends the costs of a TPU, on each of its hosts: the startup script of the request that makes it. It installs itself as
# an enabled systemd unit, which lives through reboots and asks no laptop, no bucket, no gcloud and no set-up. It deletes the
# TPU when
#   - its hours are spent (MAX_SECONDS; a trainer gets SIGTERM first, and saves);
#   - no trainer has begun (START_SECONDS);
#   - the trainer has ended, with whatever code (END_SECONDS), unless KEEP is 1.
# launch/tpu writes these values before this text. Time is the uptime of each boot, added up on disk: no clock that is set can
# change it. Where the account is lost, it counts from boot.
#
#   boot.sh          install; at a later boot what was told since stays
#   boot.sh again    install in place of what is there
#   boot.sh watch    the unit's own command
#   boot.sh may      the HTTP code with which this machine's account sees its TPU: with 403 it cannot delete it
set -uo pipefail # and no -e: nothing that fails here may end it

AT=${CAP_AT:-/var/lib/bert-jax}
UNITS=${CAP_UNITS:-/etc/systemd/system}
API=${TPU_API:-https://tpu.googleapis.com/v2}
METADATA=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1
: "${TPU:?}" "${MAX_SECONDS:?}" "${START_SECONDS:?}" "${END_SECONDS:?}" "${KEEP=}" "${SPENT_SECONDS:=0}"

tell() { echo "$(date '+%F %T') $*" | tee -a "$AT/log"; }

install_unit() {
    mkdir -p "$AT" "$UNITS"
    if [[ ${1:-} == again || ! -s $AT/boot.sh ]]; then
        cat "${BASH_SOURCE[0]}" >"$AT/boot.sh.new" && mv "$AT/boot.sh.new" "$AT/boot.sh"
    fi
    cat >"$UNITS/bert-jax-cap.service" <<UNIT
[Unit]
Description=Deletes this TPU when its hours are spent or nothing trains
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/bash $AT/boot.sh watch
Restart=always
RestartSec=10
[Install]
WantedBy=multi-user.target
UNIT
    systemctl daemon-reload
    systemctl enable bert-jax-cap
    # A boot does not wait for it.
    if [[ ${1:-} == again ]]; then systemctl --no-block restart bert-jax-cap; else systemctl --no-block start bert-jax-cap; fi
}

# How long the machine has been there: BASE before this boot, and its uptime. MARK is when it was last seen to train, or was
# made; BEGUN says which. One line on disk: BOOT BASE TOTAL MARK BEGUN.
load_account() {
    local line=''
    BOOT=$(cat "${BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id}" 2>/dev/null)
    BASE=$SPENT_SECONDS MARK=$SPENT_SECONDS BEGUN=0
    read -r line 2>/dev/null <"$AT/account"
    [[ $line =~ ^([0-9a-f-]+)\ ([0-9]{1,12})\ ([0-9]{1,12})\ ([0-9]{1,12})\ ([01])$ ]] || return 0
    BASE=$((10#${BASH_REMATCH[2]})) MARK=$((10#${BASH_REMATCH[4]})) BEGUN=${BASH_REMATCH[5]}
    [[ ${BASH_REMATCH[1]} == "$BOOT" ]] || BASE=$((10#${BASH_REMATCH[3]}))
}

trains() { # also while it is being stopped: it may be saving
    [[ $(timeout 20 systemctl is-active bert-jax 2>/dev/null) =~ ^(active|activating|reloading|deactivating)$ ]]
}

watch_costs() {
    local up why
    load_account
    while :; do
        up=$SECONDS
        read -r up _ 2>/dev/null <"${UPTIME_FILE:-/proc/uptime}"
        up=${up%.*}
        [[ $up =~ ^[0-9]{1,12}$ ]] || up=$SECONDS
        TOTAL=$((BASE + 10#$up))
        if trains; then MARK=$TOTAL BEGUN=1; fi
        # A full disk does not end the count.
        { echo "$BOOT $BASE $TOTAL $MARK $BEGUN" >"$AT/account.new" && mv "$AT/account.new" "$AT/account"; } 2>/dev/null
        why=''
        if ((TOTAL >= MAX_SECONDS)); then
            why="$((TOTAL / 60)) of $((MAX_SECONDS / 60)) minutes are spent"
            if trains; then
                tell "$why: stopping the trainer, which saves"
                timeout 600 systemctl stop bert-jax
                sleep "${LAST_SECONDS:-120}" # the other hosts, too
            fi
        elif ((BEGUN == 0 && TOTAL - MARK >= START_SECONDS)); then
            why="no trainer has begun for $((START_SECONDS / 60)) minutes"
        elif ((BEGUN == 1 && TOTAL > MARK && TOTAL - MARK >= END_SECONDS)) && [[ $KEEP != 1 ]]; then
            why="the trainer ended $((END_SECONDS / 60)) minutes ago"
        fi
        if [[ $why ]]; then
            # Until it is gone: the cloud may accept the request and fail afterwards.
            tell "$why: deleting this TPU: HTTP $(delete_tpu)"
            sleep "${AGAIN_SECONDS:-60}"
        fi
        sleep "${TICK_SECONDS:-20}"
    done
}

# The TPU API, as this machine's service account; prints the HTTP code, 000 if none came.
ask() { # METHOD NAME
    local token
    token=$(curl -sf --max-time 20 -H 'Metadata-Flavor: Google' "$METADATA/instance/service-accounts/default/token" |
        sed -nE 's/.*"access_token" *: *"([^"\\]+)".*/\1/p')
    # By stdin, so that no list of processes shows the token.
    curl -s -o /dev/null --max-time 60 -w '%{http_code}' -X "$1" -K - "$API/${TPU%/*}/$2" \
        <<<"header = \"Authorization: Bearer $token\""
}

delete_tpu() {
    local code
    code=$(ask DELETE "queuedResources/${TPU##*/}?force=true")
    # A node that no queued resource has made.
    [[ $code != 404 ]] || code=$(ask DELETE "nodes/${TPU##*/}")
    [[ $code != 403 ]] || code+=": its service account needs the role of docs/launch.md"
    echo "$code"
}

case ${1:-} in
    watch) watch_costs ;;
    may) ask GET "queuedResources/${TPU##*/}" ;;
    *) install_unit "$@" ;;
esac
