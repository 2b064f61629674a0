# shellcheck shell=bash
# What is done on all hosts, by tpu_setup.sh and worker.sh there. Needs cloud.sh and the settings of the run.

# Commands on a host find another place than ~/bert-jax only if they are told.
there() {
    printf '%s' "${BERT_JAX_HOME:+BERT_JAX_HOME=${BERT_JAX_HOME@Q} }"
}

setup_hosts() {
    local pack=$SCRATCH/bert-jax.tgz extra=() settings name mount=''
    mkdir -p "$SCRATCH/run"
    [[ ! -f ${CONFIG:-} ]] || cp -- "$CONFIG" "$SCRATCH/run/"
    [[ ! ${SECRETS:-} ]] || install -m 600 -- "$SECRETS" "$SCRATCH/run/secrets.env"
    extra=(-C "$SCRATCH" run)
    run tar -czf "$pack" --exclude=__pycache__ -C "$ROOT" bert_jax bert_jax_lab configs studies examples launch pyproject.toml README.md LICENSE \
        requirements-tpu.lock tpu_setup.sh "${extra[@]}"
    # With secrets in it, nobody else of a host is to read it.
    [[ $DRY_RUN ]] || chmod 600 "$pack"
    to_workers "$pack" || return
    settings=$(there)
    for name in CHECK_CHIPS FREE_CHIPS; do
        [[ ! ${!name:-} ]] || settings+="$name=${!name@Q} "
    done
    [[ ! ${DATA_DISK:-} ]] || mount=" && bash $HOST/launch/worker.sh mount"
    on_workers "${SETUP_SECONDS:-1800}" \
        "case \$(systemctl is-active bert-jax) in \
active | activating | reloading | deactivating) echo stop the trainer first; (exit 34) ;; \
*) rm -rf $HOST && mkdir -p $HOST && tar -xzf bert-jax.tgz -C $HOST && rm bert-jax.tgz && ${settings}bash $HOST/tpu_setup.sh --type $TYPE$mount ;; esac"
}

# Where something of a bucket is on a host, seen from ~/bert-jax; what is in no bucket is where it is.
staged() { # KIND ADDRESS
    if [[ $2 == gs://* ]]; then echo "$1/$(basename -- "$2")"; else echo "$2"; fi
}

stage() {
    if [[ $CORPUS == gs://* ]]; then
        on_workers "${STAGE_SECONDS:-21600}" \
            "bash $HOST/launch/worker.sh stage ${CORPUS@Q} $(printf %q "$PLACE/$(staged corpus "$CORPUS")")" || return
    fi
    if [[ ${INIT_FROM:-} == gs://* ]]; then
        on_workers "${STAGE_SECONDS:-21600}" \
            "bash $HOST/launch/worker.sh copy ${INIT_FROM@Q} $(printf %q "$PLACE/$(staged init "$INIT_FROM")")" || return
    fi
}

start_trainer() {
    local flags tell cache=${COMPILATION_CACHE:-}
    flags="$(libtpu_flags "$GENERATION")${LIBTPU_FLAGS:+ $LIBTPU_FLAGS}"
    tell="LIBTPU_INIT_ARGS=${flags@Q} JAX_COMPILATION_CACHE_DIR=${cache@Q} $(there)"
    [[ ! ${DOCTOR:-} ]] || tell+="DOCTOR=${DOCTOR@Q} "
    tell+=$(costs)
    on_workers "${START_SECONDS:-900}" "$tell bash $HOST/launch/worker.sh start $RUN ${ARGUMENTS[*]@Q}"
}

# For worker 0, which sees to the end of the costs (worker.sh guard).
# shellcheck disable=SC2153
costs() {
    local tpu=$PROJECT/$ZONE/$NAME
    printf '%s' "TPU=${tpu@Q} WORKDIR=${WORKDIR@Q} DELETE_WHEN_DONE=${DELETE_WHEN_DONE@Q} MAX_MINUTES=${MAX_MINUTES@Q}"
}

# Tells worker 0 of a run that is going on already what ends its costs.
tell_guard() {
    [[ $WORKDIR == gs://* ]] || return 0
    on_workers "${SSH_SECONDS:-120}" "$(there)$(costs) bash $HOST/launch/worker.sh limit $RUN" >/dev/null
}

stop_trainer() {
    on_workers "${STOP_SECONDS:-400}" "$(there)bash $HOST/launch/worker.sh stop"
}

# Each host's word in REPORT: running, an exit code, none or other.
ask_trainer() {
    ask_workers "${SSH_SECONDS:-120}" \
        "echo \"@bert-jax \$(hostname) \$($(there)bash $HOST/launch/worker.sh state $RUN 2>/dev/null || echo none)\""
}
