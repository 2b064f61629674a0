"""The check of installed versions; it imports nothing that a wrong version could break."""

import importlib.metadata
import sys

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from bert_jax.versions import installed
from bert_jax_lab.doctor.finding import Finding, failed, passed, warned

_PACKAGE = "bert-jax"


def versions() -> Finding:
    """Python and all packages have the versions that pyproject.toml requires."""
    python = ".".join(map(str, sys.version_info[:3]))
    try:
        wanted_python = importlib.metadata.metadata(_PACKAGE)["Requires-Python"]
        requirements = importlib.metadata.requires(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return warned(
            f"{_PACKAGE} is not installed: the versions that it needs are unknown",
            "pip install . in its checkout",
        )
    if not SpecifierSet(wanted_python).contains(python):
        return failed(f"Python {python}, not {wanted_python}", f"install Python {wanted_python}")
    wrong, remedies = [], []
    for wanted in map(Requirement, requirements):
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        there = installed(wanted.name).get(wanted.name)
        if there is None or not wanted.specifier.contains(there, prereleases=True):
            what = f"{there}, not {wanted.specifier}" if there else "is missing"
            wrong.append(f"{wanted.name} {what}")
            remedies.append(f"'{wanted.name}{wanted.specifier}'")
    if wrong:
        return failed(
            f"Python {python} with {'; '.join(wrong)}", f"pip install {' '.join(remedies)}"
        )
    pair = ", ".join(f"{name} {number}" for name, number in installed("jax", "flax").items())
    return passed(f"Python {python}, {pair}")
