"""Lays out README and docs/ as the source of a site, which `zensical build` makes pages of.

`python docs/site.py OUTPUT` writes OUTPUT/zensical.toml and OUTPUT/docs/. The README is the first
page. A file outside of docs/ that a page links to is copied to the site. The navigation is the
README's section "Documentation": one group per heading, with the pages in the order of their links.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
_CONFIG = """\
[project]
site_name = "bert-jax"
site_description = "Pre-train BERT-family encoders with JAX"
docs_dir = "docs"
nav = {nav}

[project.theme]
features = ["navigation.top", "search.highlight", "content.code.copy"]
"""


def place(file: Path) -> PurePosixPath:
    """Returns where a file of the repository lies in the site."""
    inside = PurePosixPath(file.relative_to(ROOT))
    if inside == PurePosixPath("README.md"):
        return PurePosixPath("index.md")
    return inside.relative_to("docs") if inside.is_relative_to("docs") else inside


def lay_out(output: Path) -> None:
    """Writes the source of the site. Raises FileNotFoundError for a link that leads nowhere."""
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
    """Returns a page's text with its links as the site has them, and the files they lead to."""
    linked = []
    here = place(page).parent

    def moved(found: re.Match[str]) -> str:
        file = Path(os.path.normpath(page.parent / found[2]))
        if not file.exists():
            raise FileNotFoundError(f"{page.relative_to(ROOT)}: the link {found[2]} leads nowhere")
        linked.append(file)
        to = place(file) / "index.md" if file.is_dir() else place(file)
        return found[1] + os.path.relpath(to, here) + found[3]

    # What looks like a link in a block of code is none.
    parts = re.split(r"(^```.*?^```$)", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in parts)
    return text, linked


def _navigation() -> str:
    """Returns the navigation in TOML: the README, and a group of pages per kind."""
    listed = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Documentation\n")[2]
    groups = ['{"bert-jax" = "index.md"}']
    for section in re.split(r"^### ", listed, flags=re.MULTILINE)[1:]:
        kind = section.partition("\n")[0]
        links = re.findall(r"\[([^]]+)\]\(([^)#]+\.md)\)", section)
        pages = [
            f"{{{json.dumps(name)} = {json.dumps(str(place(ROOT / to)))}}}" for name, to in links
        ]
        groups.append(f"{{{json.dumps(kind)} = [{', '.join(pages)}]}}")
    return f"[{', '.join(groups)}]"


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
