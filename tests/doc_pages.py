"""The pages of the documentation, and their front matter."""

import re
from pathlib import Path

from tests.paths import ROOT


def pages() -> list[Path]:
    """Returns the pages at the root and below docs/, without the reports of studies."""
    studies = ROOT / "docs" / "science"
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(page for page in found if not page.is_relative_to(studies))


def front_matter(page: Path) -> dict[str, str]:
    """Returns the fields at the top of a page; none for a page without front matter."""
    found = re.match(r"---\n(.*?)\n---\n", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = found[1].splitlines() if found else []
    return {name: value for name, _, value in (line.partition(": ") for line in lines)}


def is_generated(page: Path) -> bool:
    """Returns whether docs/generate.py writes the whole page."""
    return "generated" in front_matter(page)
