#!/usr/bin/env bash
# Makes a TPU host ready to train: its own Python, the locked packages, this checkout, free chips. Run it on every host
# (launch/tpu does), as often as you like: what is done already is not done again. It asks nothing.
#
#   tpu_setup.sh [--type TYPE] [--smoke]
#
# TYPE is as in launch/accelerators.tsv; without it the machine is asked. --smoke trains on this host alone at the end, a
# minute, as `make smoke` does: text to a filled-in word, with a kill on the way.
#
# Settings: BERT_JAX_HOME (~/bert-jax) is where everything goes. CHECK_CHIPS=0 leaves out the look at the chips.
#
# Exit codes: 0 ready; 2 wrong usage; 30 not a machine for this; 31 no uv; 32 no Python; 33 packages not installed;
# 34 a trainer is running, or the chips cannot be freed; 35 JAX does not see the chips; 36 the smoke test failed.

UV_VERSION=0.13.8
UV_SHA256=e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984
PYTHON_VERSION=3.12.16

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=launch/lib/common.sh
source "$HERE/launch/lib/common.sh"
# shellcheck source=launch/lib/unit.sh
source "$HERE/launch/lib/unit.sh"
LOCK=$HERE/requirements-tpu.lock
VENV=$PLACE/venv
DEVICES_AT=${DEVICES_AT:-/dev}
# A path of the system: libtpu itself puts its lock there, and its error message names it.
LIBTPU_LOCKFILE=${LIBTPU_LOCKFILE:-/tmp/libtpu_lockfile}

say() { printf '%s tpu_setup: %s\n' "$(date '+%T')" "$*"; }

# uv comes from PyPI, by version and hash; only pip is needed, of the image's own Python.
install_uv() {
    UV=$PLACE/uv/bin/uv
    [[ ! -x $UV || $("$UV" --version) != "uv $UV_VERSION"* ]] || return 0
    python3 -m pip --version >/dev/null 2>&1 ||
        die 31 "there is no pip, which images for TPUs have: sudo apt-get install python3-pip"
    say "installing uv $UV_VERSION"
    rm -rf "$PLACE/uv"
    python3 -m pip install --quiet --no-input --no-deps --only-binary :all: --require-hashes \
        --disable-pip-version-check --target "$PLACE/uv" \
        -r <(echo "uv==$UV_VERSION --hash=sha256:$UV_SHA256") </dev/null ||
        die 31 "pip cannot install uv $UV_VERSION: is there a way to the package index?"
}

# Made anew only if the hash of what it is made from is another than last time.
install_environment() {
    local hash
    hash=$(cat "$LOCK" "${BASH_SOURCE[0]}" | sha256sum)
    if [[ $(cat "$PLACE/stamp" 2>/dev/null) == "$hash" && -x $VENV/bin/python ]]; then
        say "environment is there"
        return
    fi
    rm -f "$PLACE/stamp"
    install_uv
    say "making an environment with Python $PYTHON_VERSION"
    "$UV" --no-config venv --quiet --clear --python "$PYTHON_VERSION" "$VENV" </dev/null ||
        die 32 "uv cannot get Python $PYTHON_VERSION: is there a way out? (UV_PYTHON_INSTALL_MIRROR names another source)"
    say "installing the locked packages"
    "$UV" --no-config pip sync --quiet --require-hashes --python "$VENV/bin/python" "$LOCK" </dev/null ||
        die 33 "uv cannot install $LOCK"
    echo "$hash" >"$PLACE/stamp"
}

install_package() {
    "$PLACE/uv/bin/uv" --no-config pip install --quiet --no-deps --no-build-isolation --reinstall --python "$VENV/bin/python" \
        "$HERE" </dev/null || die 33 "uv cannot install bert-jax from $HERE"
    say "installed bert-jax"
}

holders() { # processes that have a chip open
    as_root find /proc/[0-9]*/fd \( -lname "$DEVICES_AT/accel*" -o -lname "$DEVICES_AT/vfio/*" \) 2>/dev/null |
        cut -d / -f 3 | sort -u
}

# What is known to be left of a trainer: it runs bert_jax, or this environment's own Python.
is_ours() { # PID
    [[ $(as_root readlink "/proc/$1/exe" 2>/dev/null) == "$PLACE"/* ]] ||
        tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -qE "bert[-_]jax|$VENV/"
}

# A trainer that died badly can leave a process that holds the chips; only then is the lock file in the way. Anything else that
# holds them is somebody's: it is named and left alone.
free_chips() {
    local signal pid pids
    for signal in TERM TERM TERM KILL KILL ''; do
        mapfile -t pids < <(holders || true)
        ((${#pids[@]})) || break
        for pid in "${pids[@]}"; do
            is_ours "$pid" || die 34 "the chips are held by process $pid \
($(tr '\0\n' '  ' <"/proc/$pid/cmdline" 2>/dev/null | cut -c 1-80)), which is not bert-jax's: end it"
        done
        [[ $signal ]] || die 34 "the chips are still held by ${pids[*]}"
        say "chips are held by ${pids[*]}: SIG$signal"
        as_root kill "-$signal" "${pids[@]}" 2>/dev/null || true
        sleep "${HOLDER_SECONDS:-3}"
    done
    as_root rm -f "$LIBTPU_LOCKFILE"
}

# JAX on this host alone, with the limits that the trainer will have: the first use of a pod's devices would otherwise wait
# for all the other hosts.
alone() { # SECONDS COMMAND...
    as_unit --quiet --pipe --wait --collect \
        --setenv=BIN="$VENV/bin" --setenv=JAX_PLATFORMS=tpu --setenv=TPU_MIN_LOG_LEVEL=2 \
        --setenv=TPU_PROCESS_BOUNDS=1,1,1 --setenv=TPU_CHIPS_PER_PROCESS_BOUNDS="$BOUNDS" \
        --setenv=TPU_VISIBLE_DEVICES="$(seq -s , 0 $((CHIPS - 1)))" timeout --foreground "$@"
}

check_chips() {
    local seen said
    [[ ${CHECK_CHIPS:-1} != 0 ]] || return 0
    seen=$(alone 300 "$VENV/bin/python" -c 'import jax; print(jax.local_device_count())' \
        2>"$PLACE/check.log" </dev/null) || tail -n 5 "$PLACE/check.log" >&2
    said="JAX sees ${seen:-no} devices on this host"
    if [[ $seen != "$DEVICES" ]]; then
        said+="; a host of $TYPE has $DEVICES ($PLACE/check.log)"
        ((HOSTS > 1)) || die 35 "$said"
        # A slice of several hosts may refuse to be looked at one by one, and be well all the same.
        said="warning: $said. One host of $HOSTS was looked at alone, which may be the reason: going on"
    fi
    say "$said"
}

main() {
    TYPE='' SMOKE='' HELP='tpu_setup.sh --help'
    read_options --smoke "TYPE SMOKE" "$@"
    [[ $(uname -s) == Linux && $(uname -m) == x86_64 ]] ||
        die 30 "$(uname -sm): the lock is for Linux on x86_64, which all TPU hosts are"
    [[ $TYPE ]] || TYPE=$(curl -sf -m 5 -H 'Metadata-Flavor: Google' \
        http://metadata.google.internal/computeMetadata/v1/instance/attributes/accelerator-type) ||
        die 30 "this machine does not say that it is a TPU host; if it is one, give --type TYPE"
    accelerator "$TYPE"
    mkdir -p "$PLACE"
    chmod 700 "$PLACE" 2>/dev/null || true # what runs there may have secrets
    exec 9>"$PLACE/setup.lock"
    flock -w 1800 9 || die 34 "another tpu_setup.sh has been running for half an hour"
    ! running || die 34 "a trainer is running here; stop it first (launch/tpu stop)"
    install_environment
    install_package
    free_chips
    check_chips
    [[ ! $SMOKE ]] || alone 600 sh "$HERE/examples/smoke.sh" </dev/null || die 36 "the smoke test failed"
    say "ready"
}

main "$@"
