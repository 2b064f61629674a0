"""The files that a project has for its forge, its readers and its releases say what is there."""

import importlib.util
import re
import subprocess
import tomllib
from collections.abc import Iterator

import pytest
import yaml

from bert_jax.versions import REPOSITORY
from tests import slow
from tests.paths import ROOT

_ROOT = ROOT


def test_each_part_of_ci_is_a_job_of_the_workflow():
    listed = subprocess.run(
        ["bash", ".ci/run", "--list"], cwd=_ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    workflow = yaml.safe_load((_ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["part"]["strategy"]["matrix"]["part"] == listed
    targets = re.findall(r"^([a-z]+):", (_ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(listed) - {"launched_compiler", "newest"} <= set(targets)


@pytest.mark.parametrize("lock", ["build", "run", "dev"])
def test_a_lock_pins_each_package_by_hash_and_holds_no_address(lock):
    text = (ROOT / "locks" / f"{lock}.txt").read_text(encoding="utf-8")
    packages = re.findall(r"^[^\s#].*(?:\n +--hash=sha256:[0-9a-f]{64}.*)+", text, re.M)
    assert len(packages) == len(re.findall(r"^[^\s#]", text, re.M)) > 5
    assert all(re.match(r"[a-z0-9.-]+==[^ ]+ (; .+ )?\\\n", package) for package in packages)
    assert "://" not in text
    assert not re.search(r"^-", text, re.M)


def test_listed_slow_tests_exist():
    for line in slow.listed():
        file, _, name = slow.function_of(line).partition("::")
        function = name.rpartition("::")[2]
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), line


def test_a_part_that_does_not_exist_is_named():
    done = subprocess.run(
        ["bash", ".ci/run", "lint", "tests"], cwd=_ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tests is no part: smoke test launch")


def test_the_files_that_the_image_copies_exist():
    for line in (_ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY "):
            for name in line.split()[1:-1]:
                assert (_ROOT / name).exists(), line


def test_the_repository_has_one_address():
    """`versions.REPOSITORY`, which is empty until the first release: no other is invented."""
    files = [*_ROOT.glob("*.md"), *_ROOT.glob("*.cff"), _ROOT / "pyproject.toml"]
    files += [*(_ROOT / "docs").rglob("*.md"), *(_ROOT / "examples").glob("*.ipynb")]
    for file in files:
        text = file.read_text(encoding="utf-8")
        for address in re.findall(
            r"[\w+]+://[\w.]+/[\w.-]+/bert-jax(?![\w-])|OWNER/bert-jax", text
        ):
            assert address == REPOSITORY, f"{file.name}: {address}"


def _listed(groups: list[dict]) -> Iterator[str]:
    """Yields the pages of a navigation, whose groups may contain groups."""
    for group in groups:
        for inside in group.values():
            if isinstance(inside, str):
                yield inside
            else:
                yield from _listed(inside)


def test_every_page_of_the_site_links_to_what_the_site_has(tmp_path):
    spec = importlib.util.spec_from_file_location("site_of_docs", _ROOT / "docs" / "site.py")
    assert spec and spec.loader
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    site.lay_out(tmp_path / "site")
    pages = sorted((tmp_path / "site" / "docs").rglob("*.md"))
    assert {"index.md", "glossary.md", "CONTRIBUTING.md"} <= {page.name for page in pages}
    config = tomllib.loads((tmp_path / "site" / "zensical.toml").read_text(encoding="utf-8"))
    _, *groups = config["project"]["nav"]
    assert [name for group in groups for name in group] == [*site._HEADINGS.values()]
    of_docs = [page for page in (_ROOT / "docs").rglob("*.md") if site.kind_of(page)]
    assert sorted(_listed(groups)) == sorted(
        ["CHANGELOG.md", "CONTRIBUTING.md"]
        + [str(page.relative_to(_ROOT / "docs")) for page in of_docs]
    )
    links = 0
    for page in pages:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
            assert (page.parent / link).exists(), f"{page}: {link}"
            links += 1
    assert links > 200
