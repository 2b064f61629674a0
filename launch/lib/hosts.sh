# shellcheck shell=bash
# What is done on all hosts, by tpu_setup.sh and worker.sh there. Needs cloud.sh and the settings of the run.

# worker.sh on a host, which finds another place than ~/bert-jax only if it is told.
on_host() { printf '%s' "${BERT_JAX_HOME:+BERT_JAX_HOME=${BERT_JAX_HOME@Q} }bash $HOST/launch/worker.sh"; }

# What a host needs of this checkout.
PARTS=(bert_jax bert_jax_lab configs studies examples launch pyproject.toml README.md LICENSE requirements-tpu.lock tpu_setup.sh)

# Packs the checkout; its hash, of names and contents alone, is CHECKOUT.
pack() { # FILE
    run tar -czf "$1" --exclude=__pycache__ -C "$ROOT" "${PARTS[@]}"
    CHECKOUT=$(cd "$ROOT" && find "${PARTS[@]}" -type f -not -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z |
        xargs -0 sha256sum | sha256sum | cut -c 1-16)
}

# One checkout for one run: packed before its first machine is made and kept here, with its hash in the workdir. Another one
# has to be asked for.
take_checkout() {
    local kept=${XDG_STATE_HOME:-$HOME/.local/state}/bert-jax/$RUN said
    PACK=$kept.tgz
    if [[ $DRY_RUN ]]; then
        PACK=$SCRATCH/bert-jax.tgz
        pack "$PACK"
    elif [[ -s $PACK && -s $kept.hash && ! ${NEW_CHECKOUT:-} ]]; then
        CHECKOUT=$(beginning <"$kept.hash")
        log "the checkout that this run began with goes on ($CHECKOUT); --new-checkout takes the one that is here now"
    else
        mkdir -p "$(dirname "$kept")"
        pack "$PACK.new" && mv "$PACK.new" "$PACK" && echo "$CHECKOUT" >"$kept.hash"
    fi
    said=$(noted launched_checkout) || die "$EXIT_CLOUD" "$WORKDIR cannot be read: $(why)"
    if [[ $said =~ ^"$RUN"\ ([0-9a-f]{16})$ && ${BASH_REMATCH[1]} != "$CHECKOUT" && ! ${NEW_CHECKOUT:-} ]]; then
        rm -f "$PACK" # the next one is compared anew
        die "$EXIT_USAGE" "the run began with another checkout (${BASH_REMATCH[1]}) than this one ($CHECKOUT): go on where that \
is, or take this one with --new-checkout"
    fi
    [[ $said == "$RUN $CHECKOUT" ]] || note launched_checkout "$RUN $CHECKOUT"
}

setup_hosts() {
    local settings name mount=''
    if [[ ! ${PACK:-} ]]; then # `setup` by hand: what is here now
        PACK=$SCRATCH/bert-jax.tgz
        pack "$PACK"
    fi
    cap
    mkdir -p "$SCRATCH/run"
    cp "$SCRATCH/boot.sh" "$SCRATCH/run/"
    echo "$CHECKOUT" >"$SCRATCH/run/checkout"
    [[ ! -f ${CONFIG:-} ]] || cp -- "$CONFIG" "$SCRATCH/run/"
    [[ ! ${SECRETS:-} ]] || install -m 600 -- "$SECRETS" "$SCRATCH/run/secrets.env"
    # With secrets in it, nobody else of a host is to read it.
    (umask 077 && run tar -czf "$SCRATCH/bert-jax-run.tgz" -C "$SCRATCH" run)
    [[ $DRY_RUN || $PACK == "$SCRATCH"/* ]] || cp "$PACK" "$SCRATCH/bert-jax.tgz" # by this name
    to_workers "$SCRATCH/bert-jax.tgz" "$SCRATCH/bert-jax-run.tgz" || return
    settings=${BERT_JAX_HOME:+BERT_JAX_HOME=${BERT_JAX_HOME@Q} }
    for name in CHECK_CHIPS FREE_CHIPS; do
        [[ ! ${!name:-} ]] || settings+="$name=${!name@Q} "
    done
    [[ ! ${DATA_DISK:-} ]] || mount=" && bash $HOST/launch/worker.sh mount"
    # One set-up at a time: another launcher may be at it, too.
    on_workers "${SETUP_SECONDS:-1800}" "(flock -w 1800 8; case \$(systemctl is-active bert-jax) in \
active | activating | reloading | deactivating) echo stop the trainer first; exit 34 ;; \
*) rm -rf $HOST && mkdir -p $HOST && tar -xzf bert-jax.tgz -C $HOST && tar -xzf bert-jax-run.tgz -C $HOST && \
rm bert-jax-run.tgz && bash $HOST/launch/worker.sh cap $HOST/run/boot.sh && ${settings}bash $HOST/tpu_setup.sh --type $TYPE$mount ;; \
esac) 8>bert-jax.setup"
}

# Tells the hosts of a machine that trains already what ends its costs.
tell_cap() {
    cap
    to_workers "$SCRATCH/boot.sh" && on_workers "${SSH_SECONDS:-120}" "$(on_host) cap boot.sh && rm boot.sh"
}

# Where something of a bucket is on a host, seen from ~/bert-jax; what is in no bucket is where it is.
staged() { # KIND ADDRESS
    if [[ $2 == gs://* ]]; then echo "$1/$(basename -- "$2")"; else echo "$2"; fi
}

stage() {
    [[ $CORPUS != gs://* ]] || stage_one stage corpus "$CORPUS" || return
    [[ ${INIT_FROM:-} != gs://* ]] || stage_one copy init "$INIT_FROM"
}

stage_one() { # VERB KIND ADDRESS
    on_workers "${STAGE_SECONDS:-21600}" "bash $HOST/launch/worker.sh $1 ${3@Q} $(printf %q "$PLACE/$(staged "$2" "$3")")"
}

start_trainer() {
    local flags cache=${COMPILATION_CACHE:-}
    flags="$(libtpu_flags "$GENERATION")${LIBTPU_FLAGS:+ $LIBTPU_FLAGS}"
    on_workers "${START_SECONDS:-900}" "LIBTPU_INIT_ARGS=${flags@Q} JAX_COMPILATION_CACHE_DIR=${cache@Q} WORKDIR=${WORKDIR@Q} \
${DOCTOR:+DOCTOR=${DOCTOR@Q} }$(on_host) start $RUN ${ARGUMENTS[*]@Q}"
}

stop_trainer() { on_workers "${STOP_SECONDS:-400}" "$(on_host) stop"; }

# Each host's word in REPORT: running, an exit code, none or other.
ask_trainer() {
    ask_workers "${SSH_SECONDS:-120}" "echo \"@bert-jax \$(hostname) \$($(on_host) state $RUN 2>/dev/null || echo none)\""
}
