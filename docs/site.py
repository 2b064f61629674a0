"""Lays out README and docs/ as the source of a site, which `zensical build` builds.

`python docs/site.py OUTPUT` writes OUTPUT/zensical.toml and OUTPUT/docs/. The README is the first
page. A file outside of docs/ that a page links to is copied to the site. The navigation follows the
section "Documentation" of the README: one group per heading, with the pages in the order of their
links. The front matter of a page declares its kind, which decides its group.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
_PAGE = re.compile(r"\[([^]]+)\]\(([^)#]+\.md)\)")
# The kind of a page -> its heading in the README.
_HEADINGS = {
    "tutorial": "Tutorials",
    "guide": "Guides",
    "reference": "Reference",
    "concept": "Concepts",
}
_CONFIG = """\
[project]
site_name = "bert-jax"
site_description = "Pre-train BERT-family encoders with JAX"
docs_dir = "docs"
nav = {nav}

[project.theme]
features = ["navigation.top", "search.highlight", "search.suggest", "content.code.copy"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark colors"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Switch to light colors"
"""


def place(file: Path) -> PurePosixPath:
    """Returns the place of a file of the repository in the site."""
    inside = PurePosixPath(file.relative_to(ROOT))
    if inside == PurePosixPath("README.md"):
        return PurePosixPath("index.md")
    return inside.relative_to("docs") if inside.is_relative_to("docs") else inside


def lay_out(output: Path) -> None:
    """Writes the source of the site. Raises FileNotFoundError for a broken link."""
    shutil.rmtree(output, ignore_errors=True)
    waiting = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    seen = set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        target = output / "docs" / place(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            target = target / "index.md"
            target.parent.mkdir(exist_ok=True)
            files = sorted(inner for inner in file.iterdir() if inner.is_file())
            waiting += files
            lines = [f"- [{inner.name}]({inner.name})" for inner in files]
            target.write_text(f"# {file.name}\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
        elif file.suffix == ".md":
            text, linked = _with_links(file)
            waiting += linked
            target.write_text(text, encoding="utf-8")
        else:
            shutil.copyfile(file, target)
    (output / "zensical.toml").write_text(_CONFIG.format(nav=_navigation()), encoding="utf-8")


def _with_links(page: Path) -> tuple[str, list[Path]]:
    """Returns the text of a page with the links of the site, and the linked files."""
    linked = []
    here = place(page).parent

    def moved(found: re.Match[str]) -> str:
        file = Path(os.path.normpath(page.parent / found[2]))
        if not file.exists():
            raise FileNotFoundError(f"{page.relative_to(ROOT)}: broken link {found[2]}")
        linked.append(file)
        to = place(file) / "index.md" if file.is_dir() else place(file)
        return found[1] + os.path.relpath(to, here) + found[3]

    # A block of code has no links.
    parts = re.split(r"(^```.*?^```$)", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in parts)
    return text, linked


def kind_of(page: Path) -> str:
    """Returns the kind that the front matter of a page declares; "" for a page without any."""
    found = re.match(
        r"---\n(?:.*\n)*?kind: (\w+)\n(?:.*\n)*?---\n", page.read_text(encoding="utf-8")
    )
    return found[1] if found else ""


def _navigation() -> str:
    """Returns the navigation in TOML: the README, and one group of pages per kind.

    An item of a list with several links is a group inside its group. Raises ValueError for a page
    that is listed under another kind, or for a page of docs/ that is not listed once.
    """
    listed = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Documentation\n")[2]
    groups, pages = ['{"bert-jax" = "index.md"}'], []
    for section in re.split(r"^### ", listed, flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        entries = []
        for item in re.findall(r"^- (.*(?:\n  .*)*)", section, flags=re.MULTILINE):
            links = _PAGE.findall(item)
            for _, to in links:
                pages.append(ROOT / to)
                if (kind := kind_of(ROOT / to)) and _HEADINGS[kind] != heading:
                    raise ValueError(f"README.md: {to} is a {kind}, and is listed in {heading}")
            inside = [_entry(name, str(place(ROOT / to))) for name, to in links]
            title = item.partition(": [")[0]
            entries += (
                [f"{{{json.dumps(title)} = [{', '.join(inside)}]}}"] if title != item else inside
            )
        groups.append(f"{{{json.dumps(heading)} = [{', '.join(entries)}]}}")
    written = {page for page in (ROOT / "docs").rglob("*.md") if kind_of(page)}
    if wrong := {page for page in written if pages.count(page) != 1}:
        raise ValueError(f"README.md does not list once: {', '.join(sorted(map(str, wrong)))}")
    return f"[{', '.join(groups)}]"


def _entry(name: str, to: str) -> str:
    return f"{{{json.dumps(name)} = {json.dumps(to)}}}"


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
