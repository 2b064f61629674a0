"""A process on a machine with TPU chips, where jax detects its cluster: prints what it found.

    python -m tests.chaos.detected DEVICES

DEVICES is a folder that replaces /sys/bus/pci/devices.
"""

import glob
import json
import sys


def look_for_chips_in(directory: str) -> None:
    """Must be called before jax is imported, which looks once."""
    find = glob.glob

    def found(pattern: str, **options) -> list[str]:
        return find(pattern.replace("/sys/bus/pci/devices", directory), **options)

    glob.glob = found


def meet() -> None:
    import jax

    from bert_jax.runtime import distributed

    connection = distributed.Connection(distributed=True).validate()
    resolved = connection.resolved()
    connection.connect(seconds=60)
    exchanged = distributed.exchange("number", f"process {jax.process_index()}", seconds=60)
    print(json.dumps({
        "coordinator": resolved.coordinator,
        "told": [resolved.process_id, resolved.num_processes],
        "has": [jax.process_index(), jax.process_count()],
        "devices": jax.device_count(),
        "exchanged": exchanged,
    }))  # fmt: skip
    distributed.disconnect()


if __name__ == "__main__":
    look_for_chips_in(sys.argv[1])
    meet()
