# shellcheck shell=bash
# How anything that touches the chips runs on a host: as a systemd unit with these properties. Sourced there.

# shellcheck disable=SC2034
UNIT_PROPERTIES=(
    # The drivers of v5e, v5p and v6e lock memory (VFIO), without a limit; an ssh session's limits are not a unit's.
    --property=LimitMEMLOCK=infinity
    --property=LimitNOFILE=100000
    # Units stop before what they are ordered after: the network has to be there while the trainer saves.
    --property=Wants=network-online.target
    --property=After=network-online.target
)
