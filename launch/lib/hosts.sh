# shellcheck shell=bash
# What is done on all hosts, by tpu_setup.sh and worker.sh there. Needs cloud.sh and the settings of the run.

# Settings as a host's shell reads them.
told() { # VARIABLE...
    local name
    for name in "$@"; do
        [[ ! ${!name:-} ]] || printf '%s=%s ' "$name" "${!name@Q}"
    done
}

# worker.sh on a host, which finds another place than ~/bert-jax only if it is told.
on_host() { printf '%s' "$(told BERT_JAX_HOME)bash $HOST/launch/worker.sh"; }

# What a host needs of this checkout.
PARTS=(bert_jax bert_jax_lab configs studies examples launch pyproject.toml README.md LICENSE requirements-tpu.lock tpu_setup.sh)

# Packs the checkout into $SCRATCH/bert-jax.tgz; its hash, of names and contents alone, is CHECKOUT.
pack() {
    run tar -czf "$SCRATCH/bert-jax.tgz" --exclude=__pycache__ -C "$ROOT" "${PARTS[@]}"
    CHECKOUT=$(cd "$ROOT" && find "${PARTS[@]}" -type f -not -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z |
        xargs -0 sha256sum | sha256sum | cut -c 1-16)
}
CHECKOUT=''

# One checkout for one run: packed before its first machine is made and kept here, with its hash in the workdir. Another one
# has to be asked for.
take_checkout() {
    local kept=${XDG_STATE_HOME:-$HOME/.local/state}/bert-jax/$RUN said
    if [[ ! $DRY_RUN && -s $kept.tgz && -s $kept.hash && ! ${NEW_CHECKOUT:-} ]]; then
        CHECKOUT=$(beginning <"$kept.hash")
        cp "$kept.tgz" "$SCRATCH/bert-jax.tgz"
        log "the checkout that this run began with goes on ($CHECKOUT); --new-checkout takes the one that is here now"
    else
        pack
    fi
    said=$(noted launched_checkout) || die "$EXIT_CLOUD" "$WORKDIR cannot be read: $(why)"
    if [[ $said =~ ^"$RUN"\ ([0-9a-f]{16})$ && ${BASH_REMATCH[1]} != "$CHECKOUT" && ! ${NEW_CHECKOUT:-} ]]; then
        die "$EXIT_USAGE" "the run began with another checkout (${BASH_REMATCH[1]}) than this one ($CHECKOUT): go on where that \
is, or take this one with --new-checkout"
    fi
    [[ ! $DRY_RUN ]] || return 0
    mkdir -p "${kept%/*}"
    cp "$SCRATCH/bert-jax.tgz" "$kept.new" && mv "$kept.new" "$kept.tgz" && echo "$CHECKOUT" >"$kept.hash"
    [[ $said == "$RUN $CHECKOUT" ]] || note launched_checkout "$RUN $CHECKOUT"
}

setup_hosts() {
    [[ $CHECKOUT ]] || pack # `setup` by hand: what is here now
    cap
    mkdir -p "$SCRATCH/run"
    cp "$SCRATCH/boot.sh" "$SCRATCH/run/"
    echo "$CHECKOUT" >"$SCRATCH/run/checkout"
    [[ ! -f ${CONFIG:-} ]] || cp -- "$CONFIG" "$SCRATCH/run/"
    [[ ! ${FILES[*]-} ]] || cp -- "${FILES[@]}" "$SCRATCH/run/"
    [[ ! ${SECRETS:-} ]] || (umask 077 && lines_of "$SECRETS" >"$SCRATCH/run/secrets.env")
    # With secrets in it, nobody else of a host is to read it.
    (umask 077 && run tar -czf "$SCRATCH/bert-jax-run.tgz" -C "$SCRATCH" run)
    to_workers "$SCRATCH/bert-jax.tgz" "$SCRATCH/bert-jax-run.tgz" || return
    # One set-up at a time: another launcher may be at it, too.
    on_workers 1800 "(flock -w 1800 8; case \$(systemctl is-active bert-jax) in \
active | activating | reloading | deactivating) echo stop the trainer first; exit 34 ;; \
*) rm -rf $HOST && mkdir -p $HOST && tar -xzf bert-jax.tgz -C $HOST && tar -xzf bert-jax-run.tgz -C $HOST && \
rm bert-jax-run.tgz && bash $HOST/launch/worker.sh cap $HOST/run/boot.sh && \
$(told BERT_JAX_HOME CHECK_CHIPS)bash $HOST/tpu_setup.sh --type $TYPE ;; esac) 8>bert-jax.setup"
}

# Tells the hosts of a machine that trains already what ends its costs.
tell_cap() {
    cap
    to_workers "$SCRATCH/boot.sh" && on_workers 120 "$(on_host) cap boot.sh && rm boot.sh"
}

stage() {
    local number words=''
    for ((number = 0; number < ${#STAGED[@]}; number += 2)); do
        words+=" ${STAGED[number]@Q} $(printf %q "$PLACE/${STAGED[number + 1]}")"
    done
    [[ ! $words ]] || on_workers 21600 "bash $HOST/launch/worker.sh stage$words"
}

# shellcheck disable=SC2034 # `told` reads them by their names
start_trainer() {
    local LIBTPU_INIT_ARGS JAX_COMPILATION_CACHE_DIR=${COMPILATION_CACHE:-}
    LIBTPU_INIT_ARGS="$(libtpu_flags "$GENERATION")${LIBTPU_FLAGS:+ $LIBTPU_FLAGS}"
    on_workers 120 "$(told LIBTPU_INIT_ARGS JAX_COMPILATION_CACHE_DIR WORKDIR DOCTOR)$(on_host) start $RUN ${ARGUMENTS[*]@Q}"
}

stop_trainer() { on_workers 400 "$(on_host) stop"; }

# Each host's word in REPORT: running, an exit code, none or other.
ask_trainer() {
    ask_workers 120 "echo \"@bert-jax \$(hostname) \$($(on_host) state $RUN 2>/dev/null || echo none)\""
}
