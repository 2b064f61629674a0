#!/usr/bin/env bash
# Installs bert-jax on a TPU host: its own Python, the locked packages and this checkout; then checks the chips. Run it on every
# host (launch/tpu does). A second run repeats only what has changed. It asks no questions.
#
#   tpu_setup.sh [TYPE]
#
# TYPE is listed in launch/accelerators.tsv; by default it is read from the metadata server.
#
# Variables: BERT_JAX_HOME, the installation directory (~/bert-jax); CHECK_CHIPS=0 omits the check of the chips.
#
# Exit codes: 0 ready; 2 wrong usage; 30 not a TPU host; 31 uv not installed; 32 Python not installed; 33 packages not installed;
# 34 a trainer runs; 35 JAX does not see the chips.

UV_VERSION=0.13.8
UV_SHA256=e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984
PYTHON_VERSION=3.12.16

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=launch/common.sh
source "$HERE/launch/common.sh"
LOCK=$HERE/requirements-tpu.lock
VENV=$PLACE/venv

say() { printf '%s tpu_setup: %s\n' "$(date '+%T')" "$*"; }

# Installs uv from PyPI by version and hash, with the pip of the image.
install_uv() {
    UV=$PLACE/uv/bin/uv
    if [[ -x $UV && $("$UV" --version) == "uv $UV_VERSION"* ]]; then return; fi
    say "installing uv $UV_VERSION"
    rm -rf "$PLACE/uv"
    python3 -m pip install --quiet --no-input --no-deps --only-binary :all: --require-hashes \
        --disable-pip-version-check --target "$PLACE/uv" \
        -r <(echo "uv==$UV_VERSION --hash=sha256:$UV_SHA256") </dev/null ||
        die 31 "pip cannot install uv $UV_VERSION: install python3-pip, and check the connection to the package index"
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

# Starts JAX in a systemd unit with the limits of the trainer: an ssh session may lock less memory. The variables let JAX see this
# host only, because the devices of a pod would wait for all hosts.
count_devices() {
    as_root systemd-run --quiet --pipe --wait --collect --uid="$(id -u)" --gid="$(id -g)" --working-directory="$PLACE" \
        --property=LimitMEMLOCK=infinity --property=LimitNOFILE=100000 --setenv=HOME="$HOME" --setenv=JAX_PLATFORMS=tpu \
        --setenv=TPU_MIN_LOG_LEVEL=2 --setenv=TPU_PROCESS_BOUNDS=1,1,1 --setenv=TPU_CHIPS_PER_PROCESS_BOUNDS="$BOUNDS" \
        --setenv=TPU_VISIBLE_DEVICES="$(seq -s , 0 $((CHIPS - 1)))" timeout --foreground 300 "$VENV/bin/python" \
        -c 'import jax; print(jax.local_device_count())' 2>"$PLACE/check.log" </dev/null
}

check_chips() {
    local seen said
    if [[ ${CHECK_CHIPS:-1} == 0 ]]; then return; fi
    # A process that was killed can leave the lock file of libtpu.
    as_root rm -f "${LIBTPU_LOCKFILE:-/tmp/libtpu_lockfile}"
    seen=$(count_devices) || tail -n 5 "$PLACE/check.log" >&2
    said="JAX sees ${seen:-no} devices on this host"
    if [[ $seen != "$DEVICES" ]]; then
        said+="; a host of $TYPE has $DEVICES ($PLACE/check.log)"
        if ((HOSTS == 1)); then die 35 "$said"; fi
        # A slice of several hosts may deny access to a single host.
        said="warning: $said. This may be because only one host of $HOSTS was checked"
    fi
    say "$said"
}

case ${1:-} in
    -h | --help) usage && exit ;;
    -*) die "$EXIT_USAGE" "unknown option '$1': tpu_setup.sh --help" ;;
    '')
        TYPE=$(curl -sf -m 5 -H 'Metadata-Flavor: Google' \
            http://metadata.google.internal/computeMetadata/v1/instance/attributes/accelerator-type) ||
            die 30 "the metadata of this machine do not describe a TPU host; if it is one, give its type: tpu_setup.sh TYPE"
        ;;
    *) TYPE=$1 ;;
esac
accelerator "$TYPE"
if is_training; then
    die 34 "a trainer is running on this host. To stop it: launch/tpu ssh -- sudo systemctl disable --now bert-jax"
fi
mkdir -p "$PLACE"
install_environment
install_package
check_chips
say "ready"
