#!/usr/bin/env bash
# Installs bert-jax on a TPU host: its own Python, the locked packages and this checkout; then frees and checks the chips. Run it
# on every host (launch/tpu does). A second run repeats only what has changed. It asks no questions.
#
#   tpu_setup.sh [--type TYPE] [--smoke]
#
# TYPE is in launch/accelerators.tsv; without it the metadata server is asked. --smoke trains a tiny model on this host for a
# minute at the end, as `make smoke` does.
#
# Variables: BERT_JAX_HOME, the installation directory (~/bert-jax); CHECK_CHIPS=0 omits the check of the chips.
#
# Exit codes: 0 ready; 2 wrong usage; 30 not a TPU host; 31 uv not installed; 32 Python not installed; 33 packages not installed;
# 34 a trainer runs, or the chips cannot be freed; 35 JAX does not see the chips; 36 the smoke test failed.

UV_VERSION=0.13.8
UV_SHA256=e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984
PYTHON_VERSION=3.12.16

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=launch/common.sh
source "$HERE/launch/common.sh"
LOCK=$HERE/requirements-tpu.lock
VENV=$PLACE/venv
DEVICES_AT=${DEVICES_AT:-/dev}
# The lock file of libtpu, which its error message names.
LIBTPU_LOCKFILE=${LIBTPU_LOCKFILE:-/tmp/libtpu_lockfile}

say() { printf '%s tpu_setup: %s\n' "$(date '+%T')" "$*"; }

# Installs uv from PyPI by version and hash, with the pip of the image.
install_uv() {
    UV=$PLACE/uv/bin/uv
    if [[ -x $UV && $("$UV" --version) == "uv $UV_VERSION"* ]]; then return; fi
    python3 -m pip --version >/dev/null 2>&1 ||
        die 31 "pip is missing: sudo apt-get install python3-pip"
    say "installing uv $UV_VERSION"
    rm -rf "$PLACE/uv"
    python3 -m pip install --quiet --no-input --no-deps --only-binary :all: --require-hashes \
        --disable-pip-version-check --target "$PLACE/uv" \
        -r <(echo "uv==$UV_VERSION --hash=sha256:$UV_SHA256") </dev/null ||
        die 31 "pip cannot install uv $UV_VERSION: check the connection to the package index"
}

# Repeated only if the lock or this script has changed.
install_environment() {
    local hash
    hash=$(cat "$LOCK" "${BASH_SOURCE[0]}" | sha256sum)
    if [[ $(cat "$PLACE/stamp" 2>/dev/null) == "$hash" && -x $VENV/bin/python ]]; then
        say "the environment is up to date"
        return
    fi
    rm -f "$PLACE/stamp"
    install_uv
    say "creating an environment with Python $PYTHON_VERSION"
    "$UV" --no-config venv --quiet --clear --python "$PYTHON_VERSION" "$VENV" </dev/null ||
        die 32 "uv cannot download Python $PYTHON_VERSION: check the connection, or set UV_PYTHON_INSTALL_MIRROR"
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

# Prints the processes that have a chip open.
holders() {
    as_root find /proc/[0-9]*/fd \( -lname "$DEVICES_AT/accel*" -o -lname "$DEVICES_AT/vfio/*" \) 2>/dev/null |
        cut -d / -f 3 | sort -u
}

# Returns whether a process is a trainer: it runs bert_jax, or the Python of this environment.
is_ours() { # PID
    [[ $(as_root readlink "/proc/$1/exe" 2>/dev/null) == "$PLACE"/* ]] ||
        tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -qE "bert[-_]jax|$VENV/"
}

# A crashed trainer can leave a process that holds the chips, and the lock file. A process of another program is named in an error
# and not killed.
free_chips() {
    local signal pid pids
    for signal in TERM TERM TERM KILL KILL ''; do
        mapfile -t pids < <(holders || true)
        ((${#pids[@]})) || break
        for pid in "${pids[@]}"; do
            is_ours "$pid" || die 34 "process $pid holds the chips and is not bert-jax: end it \
($(tr '\0\n' '  ' <"/proc/$pid/cmdline" 2>/dev/null | cut -c 1-80))"
        done
        if [[ ! $signal ]]; then die 34 "the chips are still held by ${pids[*]}"; fi
        say "processes ${pids[*]} hold the chips: SIG$signal"
        as_root kill "-$signal" "${pids[@]}" 2>/dev/null || true
        sleep "${HOLDER_SECONDS:-3}"
    done
    as_root rm -f "$LIBTPU_LOCKFILE"
}

# Runs a command in a systemd unit with the limits of the trainer, where JAX sees this host alone: the devices of a pod would wait
# for all hosts. The limits of an ssh session on locked memory are lower than those of a unit.
alone() { # SECONDS COMMAND...
    as_root systemd-run --quiet --pipe --wait --collect --uid="$(id -u)" --gid="$(id -g)" --working-directory="$PLACE" \
        --property=LimitMEMLOCK=infinity --property=LimitNOFILE=100000 \
        --setenv=HOME="$HOME" --setenv=BERT_JAX_HOME="$PLACE" --setenv=PATH="$PATH" \
        --setenv=BIN="$VENV/bin" --setenv=JAX_PLATFORMS=tpu --setenv=TPU_MIN_LOG_LEVEL=2 \
        --setenv=TPU_PROCESS_BOUNDS=1,1,1 --setenv=TPU_CHIPS_PER_PROCESS_BOUNDS="$BOUNDS" \
        --setenv=TPU_VISIBLE_DEVICES="$(seq -s , 0 $((CHIPS - 1)))" timeout --foreground "$@"
}

check_chips() {
    local seen said
    if [[ ${CHECK_CHIPS:-1} == 0 ]]; then return; fi
    seen=$(alone 300 "$VENV/bin/python" -c 'import jax; print(jax.local_device_count())' \
        2>"$PLACE/check.log" </dev/null) || tail -n 5 "$PLACE/check.log" >&2
    said="JAX sees ${seen:-no} devices on this host"
    if [[ $seen != "$DEVICES" ]]; then
        said+="; a host of $TYPE has $DEVICES ($PLACE/check.log)"
        if ((HOSTS == 1)); then die 35 "$said"; fi
        # A slice of several hosts may refuse access to a single host.
        said="warning: $said. This may be because one host of $HOSTS was checked alone"
    fi
    say "$said"
}

main() {
    local smoke=''
    TYPE=''
    while (($#)); do
        case $1 in
            --type) TYPE=${2:-} && shift ;;
            --type=*) TYPE=${1#*=} ;;
            --smoke) smoke=1 ;;
            -h | --help) usage && exit ;;
            *) die "$EXIT_USAGE" "unknown argument '$1': tpu_setup.sh --help" ;;
        esac
        shift
    done
    [[ $(uname -s) == Linux && $(uname -m) == x86_64 ]] ||
        die 30 "$(uname -sm): the lock is for Linux on x86_64"
    if [[ ! $TYPE ]]; then
        TYPE=$(curl -sf -m 5 -H 'Metadata-Flavor: Google' \
            http://metadata.google.internal/computeMetadata/v1/instance/attributes/accelerator-type) ||
            die 30 "this machine is not a TPU host by its metadata; if it is one, give --type TYPE"
    fi
    accelerator "$TYPE"
    mkdir -p "$PLACE"
    exec 9>"$PLACE/setup.lock"
    flock -w 1800 9 || die 34 "another tpu_setup.sh has been running for half an hour"
    if is_training; then
        die 34 "a trainer runs here. To stop it: launch/tpu ssh -- sudo systemctl disable --now bert-jax"
    fi
    install_environment
    install_package
    free_chips
    check_chips
    if [[ $smoke ]]; then
        alone 600 sh "$HERE/examples/smoke.sh" </dev/null || die 36 "the smoke test failed"
    fi
    say "ready"
}

main "$@"
