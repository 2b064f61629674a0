#!/usr/bin/env bash
# Limits the cost of a TPU, on each of its hosts: the startup script of the request that creates it. It installs itself as an
# enabled systemd unit, which survives reboots and needs no laptop, bucket, gcloud or installation. The unit deletes the TPU
#   - MAX_SECONDS after its creation (the trainer first gets SIGTERM and saves);
#   - START_SECONDS after its creation, if no trainer has started;
#   - END_SECONDS after a trainer has ended, with any exit code, unless KEEP is 1.
# launch/tpu writes TPU, MAX_SECONDS and KEEP before this text. Time is the sum of the uptimes of all boots, kept on disk, so a
# change of the clock has no effect. If the account on disk is lost, counting starts at the boot.
#
#   boot.sh          install; a later boot keeps the installed limits
#   boot.sh again    replace the installed limits with these
#   boot.sh watch    the command of the unit
set -uo pipefail # without -e: a failing command must not end the watch

AT=${CAP_AT:-/var/lib/bert-jax}
UNITS=${CAP_UNITS:-/etc/systemd/system}
API=${TPU_API:-https://tpu.googleapis.com/v2}
METADATA=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1
: "${TPU:?}" "${MAX_SECONDS:?}" "${START_SECONDS:=3600}" "${END_SECONDS:=900}" "${KEEP:=0}"

tell() { echo "$(date '+%F %T') $*" | tee -a "$AT/log"; }

install_unit() {
    mkdir -p "$AT" "$UNITS"
    if [[ ${1:-} == again || ! -s $AT/boot.sh ]]; then
        cat "${BASH_SOURCE[0]}" >"$AT/boot.sh.new" && mv "$AT/boot.sh.new" "$AT/boot.sh"
    fi
    cat >"$UNITS/bert-jax-cap.service" <<UNIT
[Unit]
Description=Deletes this TPU at its limit of hours, or when no trainer runs
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
    # A boot does not wait for the unit.
    if [[ ${1:-} != again ]]; then
        systemctl --no-block start bert-jax-cap
        return
    fi
    systemctl --no-block restart bert-jax-cap
    if [[ $(hostname) == *-w-0 && $(ask GET "queuedResources/${TPU##*/}") == 40[13] ]]; then
        echo "warning: the service account of this TPU may not delete it, so only launch/tpu delete stops its costs. Grant it" \
            "tpu.queuedResources.get, tpu.queuedResources.delete, tpu.nodes.get, tpu.nodes.delete and tpu.operations.get"
    fi
}

# BASE is the uptime before this boot. MARK is the time of creation, or when a trainer was last seen to run (BEGUN=1). The file has
# one line: BOOT BASE TOTAL MARK BEGUN.
load_account() {
    local line=''
    BOOT=$(cat "${BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id}" 2>/dev/null)
    BASE=0 MARK=0 BEGUN=0
    read -r line 2>/dev/null <"$AT/account"
    [[ $line =~ ^([0-9a-f-]+)\ ([0-9]{1,12})\ ([0-9]{1,12})\ ([0-9]{1,12})\ ([01])$ ]] || return 0
    BASE=$((10#${BASH_REMATCH[2]})) MARK=$((10#${BASH_REMATCH[4]})) BEGUN=${BASH_REMATCH[5]}
    [[ ${BASH_REMATCH[1]} == "$BOOT" ]] || BASE=$((10#${BASH_REMATCH[3]}))
}

trains() { # also while it is being stopped, because it may be saving
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
        # A full disk must not end the count.
        { echo "$BOOT $BASE $TOTAL $MARK $BEGUN" >"$AT/account.new" && mv "$AT/account.new" "$AT/account"; } 2>/dev/null
        why=''
        if ((TOTAL >= MAX_SECONDS)); then
            why="$((TOTAL / 60)) of $((MAX_SECONDS / 60)) minutes have passed"
            if trains; then
                tell "$why: stopping the trainer, which saves"
                timeout 600 systemctl stop bert-jax
                sleep "${LAST_SECONDS:-120}" # the trainers of the other hosts save as well
            fi
        elif ((BEGUN == 0 && TOTAL - MARK >= START_SECONDS)); then
            why="no trainer has started for $((START_SECONDS / 60)) minutes"
        elif ((BEGUN == 1 && TOTAL > MARK && TOTAL - MARK >= END_SECONDS)) && [[ $KEEP != 1 ]]; then
            why="the trainer ended $((END_SECONDS / 60)) minutes ago"
        fi
        if [[ $why ]]; then
            # Repeated until the machine is gone: the cloud may accept the request and fail afterwards.
            tell "$why: deleting this TPU: HTTP $(delete_tpu)"
            sleep "${AGAIN_SECONDS:-60}"
        fi
        sleep "${TICK_SECONDS:-20}"
    done
}

# Calls the TPU API as the service account of this machine. Prints the HTTP code, or 000 without an answer.
ask() { # METHOD NAME
    local token
    token=$(curl -sf --max-time 20 -H 'Metadata-Flavor: Google' "$METADATA/instance/service-accounts/default/token" |
        sed -nE 's/.*"access_token" *: *"([^"\\]+)".*/\1/p')
    # The header is read from stdin, so that the token does not appear in process lists.
    curl -s -o /dev/null --max-time 60 -w '%{http_code}' -X "$1" -K - "$API/${TPU%/*}/$2" \
        <<<"header = \"Authorization: Bearer $token\""
}

delete_tpu() {
    local code
    code=$(ask DELETE "queuedResources/${TPU##*/}?force=true")
    # The node may have been created without a queued resource.
    [[ $code != 404 ]] || code=$(ask DELETE "nodes/${TPU##*/}")
    [[ $code != 403 ]] || code+=": the service account of this TPU may not delete it"
    echo "$code"
}

case ${1:-} in
    watch) watch_costs ;;
    *) install_unit "$@" ;;
esac
