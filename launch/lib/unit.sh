# shellcheck shell=bash
# What tpu_setup.sh and worker.sh have in common on a host. Sourced there.

PLACE=${BERT_JAX_HOME:-$HOME/bert-jax}
[[ $PLACE == /* ]] || PLACE=$HOME/$PLACE

# How anything that touches the chips runs: as a systemd unit with these properties.
# shellcheck disable=SC2034
UNIT_PROPERTIES=(
    # The drivers of v5e, v5p and v6e lock memory (VFIO), without a limit; an ssh session's limits are not a unit's.
    --property=LimitMEMLOCK=infinity
    --property=LimitNOFILE=100000
    # Units stop before what they are ordered after: the network has to be there while the trainer saves.
    --property=Wants=network-online.target
    --property=After=network-online.target
)

as_root() { if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi; }

# Whether the trainer runs; also while it is being stopped, when it may be saving.
running() { [[ $(systemctl is-active bert-jax 2>/dev/null) =~ ^(active|activating|reloading|deactivating)$ ]]; }
