"""The versions of installed packages, as runs and plans record them."""

import functools

# The TPU compiler of launched runs, pinned in requirements-tpu.lock; no wheel depends on it.
LAUNCHED_LIBTPU = "0.0.50.1"
# The address of the source repository. Empty until the first release.
REPOSITORY = ""


def installed(*names: str) -> dict[str, str]:
    """Returns the version of each installed package by name."""
    found = {name: _version(name) for name in names}
    return {name: version for name, version in found.items() if version is not None}


@functools.cache
def _version(name: str) -> str | None:
    import importlib.metadata  # a tenth of the time of `bert-jax --help`

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
