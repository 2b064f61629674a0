"""Pages are one file: valid HTML, safe for any text, and without network requests."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bert_jax_lab.reports import page

_PAGES = Path(page.__file__).parent
_HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"'& <!-- é"
_VOID = {"meta", "link", "img", "br", "hr", "input", "col"}


class Outline(HTMLParser):
    """Reads a page: its tags, in order, their attributes, and the text of each script."""

    def __init__(self, content: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(content)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"{tag}: an attribute is there twice"
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open and self._open[-1] == tag, f"</{tag}> inside {self._open}"
        self._open.pop()

    def handle_data(self, data):
        if self._open[-1:] == ["script"]:
            attributes, content = self.scripts[-1]
            self.scripts[-1] = (attributes, content + data)
        elif self._open[-1:] != ["style"]:
            self.text += data

    def data(self):
        """Returns the page's data, as its scripts read them."""
        (found,) = [text for attributes, text in self.scripts if attributes.get("id") == "data"]
        return json.loads(found)


def assert_asks_for_nothing(content: str) -> Outline:
    """Asserts that a page is well formed, refers to no other file, and only allows its scripts."""
    outline = Outline(content)
    for tag, attributes in outline.tags:
        assert not attributes.keys() & {"src", "srcset", "action", "poster", "background"}, tag
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert (attributes.get("href") or "data:").startswith("data:"), attributes
    styles = re.findall(r"<style>(.*?)</style>", content, re.DOTALL)
    assert styles and not re.search(r"@import|url\(", "".join(styles))
    (policy,) = [a["content"] for tag, a in outline.tags if a.get("http-equiv")]
    assert policy and policy.startswith("default-src 'none'")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    code = [text for attributes, text in outline.scripts if "type" not in attributes]
    digests = [hashlib.sha256(text.encode()).digest() for text in code]
    assert allowed == [base64.b64encode(digest).decode() for digest in digests]
    identities = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(set(identities)) == len(identities), identities
    return outline


def test_a_page_is_self_contained_and_hostile_text_stays_text():
    data = {"name": _HOSTILE, "values": [1.5, None, 3]}
    content = page.render(
        title=_HOSTILE,
        body=page.chart(
            "losses",
            heading=_HOSTILE,
            tables=page.table(["step", _HOSTILE], [[_HOSTILE, None]], caption=_HOSTILE),
        ),
        data=data,
        scripts=["vendor/uPlot.iife.min.js"],
        styles=["vendor/uPlot.min.css"],
    )
    outline = assert_asks_for_nothing(content)
    assert outline.data() == data
    assert [attributes.get("type") for attributes, _ in outline.scripts] == [
        "application/json",
        None,
        None,
    ]
    assert not [tag for tag, _ in outline.tags if tag == "img"]
    assert outline.text.count(_HOSTILE) == 6
    (drawing,) = [a for _, a in outline.tags if a.get("role") == "img"]
    assert drawing["aria-label"] == f"{_HOSTILE}: the table has the numbers"
    assert content.count("Copyright (c) 2022 Leon Sorokin") == 2  # before script and style


def test_non_finite_numbers_are_rejected():
    with pytest.raises(ValueError):
        page.render(title="", body="", data={"loss": float("nan")})


def test_libraries_are_unmodified_and_have_a_license():
    stated = (_PAGES / "vendor" / "README.md").read_text()
    files = sorted(p for p in (_PAGES / "vendor").iterdir() if p.suffix in (".js", ".css"))
    assert len(files) == 2
    for file in files:
        assert hashlib.sha256(file.read_bytes()).hexdigest() in stated
        library = file.name.partition(".")[0]
        assert (_PAGES / "vendor" / f"{library}.LICENSE.txt").exists()
        assert f"| {library} | " in stated


@pytest.mark.browser
def test_the_skeleton_in_a_browser(browser, pictures, tmp_path):
    """Hostile text is inert, the switch changes the colors, and no request is made."""
    file = tmp_path / "page.html"
    body = page.chart("losses", heading=_HOSTILE, tables=page.table(["a", "b"], [[_HOSTILE, 1]]))
    file.write_text(page.render(title=_HOSTILE, body=body, data={"name": _HOSTILE}))
    tab = browser.open(file, width=390)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(ground)
    assert tab.evaluate("page.data.name") == _HOSTILE and tab.overflow() == 0
    tab.click("#theme")
    assert tab.evaluate("page.isDark()") and tab.evaluate(ground) != light
    tab.screenshot(pictures / "skeleton.png")
    assert not tab.evaluate("document.querySelector('details').open")
    assert (tab.problems, tab.requests) == ([], [file.as_uri()])
    tab.close()
