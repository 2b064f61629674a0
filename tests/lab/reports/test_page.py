"""Pages are one file: valid, safe against what they show, and without a request to anywhere."""

import base64
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bert_jax_lab.reports import page

_PAGES = Path(page.__file__).parent
_HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"'& <!-- \u2028 é"
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
    """Asserts that a page is well formed, that it refers to no other file, and that its policy
    allows its own scripts only.
    """
    outline = Outline(content)
    for tag, attributes in outline.tags:
        assert not attributes.keys() & {"src", "srcset", "action", "poster", "background"}, tag
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        link = attributes.get("href") or ""
        assert not re.match(r"(?!data:)\w+:|//", link), link
    styles = re.findall(r"<style>(.*?)</style>", content, re.DOTALL)
    assert styles and not re.search(r"@import|url\(", "".join(styles))
    (policy,) = [a["content"] for tag, a in outline.tags if a.get("http-equiv")]
    assert policy and policy.startswith("default-src 'none'")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    code = [text for attributes, text in outline.scripts if "type" not in attributes]
    assert allowed == [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code
    ]
    identities = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(set(identities)) == len(identities), identities
    return outline


def test_a_page_holds_all_it_needs_and_hostile_text_stays_text():
    data = {"name": _HOSTILE, "values": [1.5, None, 3]}
    content = page.render(
        title=_HOSTILE,
        body=page.chart(
            "losses",
            heading=_HOSTILE,
            label=_HOSTILE,
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
    assert outline.text.count(_HOSTILE) == 7
    (drawing,) = [a for _, a in outline.tags if a.get("role") == "img"]
    assert drawing["aria-label"] == _HOSTILE
    assert content.count("Copyright (c) 2022 Leon Sorokin") == 2  # before script and style


@pytest.mark.parametrize(
    ("cell", "is_from_right"),
    [
        ("كان من أب [MASK] مدينة صغير.", True), ("[MASK] ילד בבית", True),
        ("قرية 24%, أم 5%", True),
        ("The word كتاب [MASK].", False), ("größer 24%", False), ("लड़का", False), ("3.14", False),
    ],
)  # fmt: skip
def test_text_from_right_to_left_says_so(cell, is_from_right):
    assert f"<td{is_from_right * ' dir=rtl'}>{cell}</td>".replace("rtl", '"rtl"') in page.table(
        ["a", "b"], [["x", cell]]
    )


def test_names_from_right_to_left_keep_their_numbers_behind_them():
    assert page.isolated("قرية") == "\N{FIRST STRONG ISOLATE}قرية\N{POP DIRECTIONAL ISOLATE}"
    assert [page.isolated(name) for name in ("runs/a", "東京", "größer")] == [
        "runs/a",
        "東京",
        "größer",
    ]


# Linear RGB as dichromats see it (Machado et al. 2009, severity 1).
_VISION = {
    "all colours": np.eye(3),
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    """Returns the red, green and blue of #rrggbb, each as light, up to 1."""
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """Returns a colour in CIELAB, where distances are those that are seen."""
    x, y, z = _TO_XYZ @ np.clip(light, 0, 1) / (0.9505, 1, 1.089)
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", _VISION)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_curves_are_told_apart_by_all_kinds_of_colour_vision(vision, dark):
    found = re.findall(r"--(card|series-\d): light-dark\((#\w+), (#\w+)\)", page.asset("page.css"))
    ground, *series = (linear(colours[dark]) for _, *colours in found)
    assert len(series) == 8
    seen = [lab(np.array(_VISION[vision]) @ light) for light in series]
    nearest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2))
    assert nearest > 20, "2 is the least that is seen at all"
    weights = _TO_XYZ[1]
    for light in series:
        low, high = sorted((weights @ light, weights @ ground))
        assert (high + 0.05) / (low + 0.05) > 3, "WCAG 2.1, 1.4.11"


def test_numbers_that_json_has_no_word_for_are_refused():
    with pytest.raises(ValueError):
        page.render(title="", body="", data={"loss": float("nan")})


def test_libraries_are_as_published_and_have_a_licence():
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
    """Hostile text does nothing, the switch changes the colours, and no request is made."""
    file = tmp_path / "page.html"
    body = page.chart(
        "losses", heading=_HOSTILE, label=_HOSTILE, tables=page.table(["a", "b"], [[_HOSTILE, 1]])
    )
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
