"""A process on a machine that has TPU chips by what /sys/bus/pci/devices says: jax then looks for
its cluster as it does there.

    python -m tests.chaos.detected DEVICES               meets the others, says how
    python -m tests.chaos.detected DEVICES pretrain ...  bert-jax with these arguments

DEVICES is a folder that takes the place of /sys/bus/pci/devices.
"""

import glob
import json
import sys


def look_for_chips_in(directory: str) -> None:
    """Has to be called before jax is imported, which looks once."""
    find = glob.glob

    def found(pattern: str, **options) -> list[str]:
        return find(pattern.replace("/sys/bus/pci/devices", directory), **options)

    glob.glob = found


def meet() -> None:
    import jax

    from bert_jax.runtime import distributed

    connection = distributed.Connection(detect=True).validate()
    resolved = connection.resolved()
    connection.connect(seconds=60)
    said = distributed.exchange("number", f"process {jax.process_index()}", seconds=60)
    print(json.dumps({
        "coordinator": resolved.coordinator,
        "told": [resolved.process_id, resolved.num_processes],
        "has": [jax.process_index(), jax.process_count()],
        "devices": jax.device_count(),
        "said": said,
    }))  # fmt: skip
    distributed.disconnect()


if __name__ == "__main__":
    look_for_chips_in(sys.argv[1])
    if len(sys.argv) == 2:
        meet()
    else:
        from bert_jax.__main__ import main

        sys.exit(main(sys.argv[2:]))
