# shellcheck shell=bash
# What tpu_setup.sh and worker.sh have in common on a host. Sourced there.

PLACE=${BERT_JAX_HOME:-$HOME/bert-jax}
[[ $PLACE == /* ]] || PLACE=$HOME/$PLACE

as_root() { if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi; }

# How anything that touches the chips runs: as a systemd unit. The drivers of v5e, v5p and v6e lock memory (VFIO), without a
# limit; an ssh session's limits are not a unit's. Units stop before what they are ordered after: the network has to be there
# while the trainer saves.
as_unit() { # OPTION OF systemd-run... COMMAND...
    as_root systemd-run --uid="$(id -u)" --gid="$(id -g)" --working-directory="$PLACE" \
        --property=LimitMEMLOCK=infinity --property=LimitNOFILE=100000 \
        --property=Wants=network-online.target --property=After=network-online.target \
        --setenv=HOME="$HOME" --setenv=BERT_JAX_HOME="$PLACE" --setenv=PATH="$PATH" "$@"
}

# Whether the trainer runs; also while it is being stopped, when it may be saving.
running() { [[ $(systemctl is-active bert-jax 2>/dev/null) =~ ^(active|activating|reloading|deactivating)$ ]]; }
