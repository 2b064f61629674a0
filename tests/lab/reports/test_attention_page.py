"""The verb `attention`: its page, its JSON, and the agreement of both."""

import base64
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config import HeadConfig
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.interchange import huggingface
from bert_jax_lab.probes.attention import AttentionProbe
from bert_jax_lab.probes.attention_document import AttentionDocument
from bert_jax_lab.reports import attention_page
from tests.browser import Tab
from tests.lab.probes.test_probe import checkpoint
from tests.lab.reports.test_page import assert_asks_for_nothing
from tests.model.test_positions import model_of
from tests.models import random_params, vocabulary

_TEXTS = ("w3 w1 w4 w1 w5", "w9 w2")
_HOSTILE = "w1 </script><img>"
_HEAD = HeadConfig(parts=("pooler",))


def written(directory: Path, kind: str) -> Path:
    """A Hugging Face directory of a random model of 2 layers with 3 heads of 8."""
    model = dataclasses.replace(model_of(kind), vocab_size=60, num_hidden_layers=2)
    words = vocabulary(directory / "words")
    huggingface.write(
        directory / "hf", random_params(model, _HEAD), model, tokenizer=words, head=_HEAD
    )
    return directory / "hf"


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Kind of position -> the directory of a model: one kind adds to the scores, one does
    not.
    """
    return {
        kind: written(tmp_path_factory.mktemp(kind), kind)
        for kind in ("learned", "relative_key_query")
    }


def attention(capsys, directory: Path, *arguments: object) -> str:
    """Runs the verb and returns what it prints."""
    command = ["attention", str(directory), *map(str, arguments)]
    assert main(command) == 0
    return capsys.readouterr().out


def decoded(stored: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(stored["data"]), "<f4").reshape(stored["shape"])


def in_full(document: dict, name: str) -> np.ndarray:
    """Returns one field of all heads, `[N, H, ...]`; NaN for null."""
    heads = [[head[name] for head in layer["heads"]] for layer in document["layers"]]
    return np.array(heads, float)


@pytest.mark.parametrize("kind", ["learned", "relative_key_query"])
def test_page_and_json_agree(kind, directories, tmp_path, capsys):
    file = tmp_path / "attention.html"
    printed = attention(capsys, directories[kind], *_TEXTS, "--html", file, "--json", "--packed")
    full = json.loads(printed)
    page = assert_asks_for_nothing(file.read_text(encoding="utf-8"))
    compact = page.data()
    shared = full.keys() - {"layers"}
    assert {name: compact[name] for name in shared} == {name: full[name] for name in shared}
    assert full["texts"] == [*_TEXTS]
    for name in ("query", "query_key", "scores"):
        numbers = in_full(full, name)
        assert not (np.signbit(numbers) & (numbers == 0)).any(), "-0.0"
    assert full["sequence_ids"] == [1] * 7 + [2] * 4
    # The computations of the script on the stored arrays, in NumPy.
    query, key = (decoded(compact[name]) for name in ("query", "key"))
    close = {"atol": 0.6e-6, "rtol": 0.0, "strict": False}
    np.testing.assert_allclose(in_full(full, "query"), query, **close)
    np.testing.assert_allclose(in_full(full, "key"), key, **close)
    scores = query.astype(float) @ np.swapaxes(key.astype(float), 2, 3) / np.sqrt(8)
    np.testing.assert_allclose(in_full(full, "query_key"), scores, **close)
    if kind == "learned":
        assert compact["position"] is None and np.isnan(in_full(full, "position")).all()
    else:
        position = decoded(compact["position"])
        np.testing.assert_allclose(in_full(full, "position"), position, **close)
        scores = scores + position
    ids = np.array(full["sequence_ids"])
    scores = np.where(ids[:, None] == ids, scores, np.nan)
    np.testing.assert_allclose(in_full(full, "scores"), scores, **close)
    exponentials = np.exp(np.nan_to_num(scores, nan=-np.inf))
    weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(in_full(full, "weights"), weights, **close)
    statistics = compact["statistics"]
    of_heads = [head for layer in full["layers"] for head in layer["heads"]]
    assert statistics == [{name: head[name] for name in statistics[0]} for head in of_heads]
    for head in statistics:
        assert f"{head['entropy']:.3f}" in page.text


def test_hostile_text_stays_text(directories, tmp_path, capsys):
    file = tmp_path / "attention.html"
    printed = attention(capsys, directories["learned"], _HOSTILE, "--html", file)
    page = assert_asks_for_nothing(file.read_text(encoding="utf-8"))
    assert page.data()["texts"] == [_HOSTILE] and not [t for t, _ in page.tags if t == "img"]
    assert f"wrote {file}: " in printed and "6 heads" in printed


def test_some_layers_as_a_table(directories, capsys):
    printed = attention(capsys, directories["learned"], "w1 w2", "--layers", "2")
    rows = [line.split("│") for line in printed.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row[1:3]] for row in rows] == [
        ["2", str(n)] for n in (1, 2, 3)
    ]
    full = json.loads(attention(capsys, directories["learned"], "w1 w2", "--layers", "2", "--json"))
    head = full["layers"][0]["heads"][1]
    assert full["layers"][0]["layer"] == head["layer"] == 2 and len(full["layers"]) == 1
    assert rows[1][6].strip() == f"{head['entropy']:.3f}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "text 1 has no words; write some"),
        (["w1"] * 3, "3 texts: give one, or two for a pair, or pack them with --packed"),
        (["w1 " * 15], "the text has 17 tokens, the model 16 positions; shorten it"),
        (["w1 " * 7] * 2 + ["--packed"], "the text has 18 tokens, the model 16 positions"),
        (["w1", "--layers", "3"], "--layers 3: the model has layers 1 to 2"),
        (["w1", "--layers", "one"], "--layers one: write numbers, as --layers=1,2"),
        (["w1", "--html", "."], "--html . is a directory; name a file in it"),
        (["w1", "--html", "no/a.html"], "--html no/a.html: no directory no; make it"),
    ],
)
def test_errors_are_one_line(arguments, message, directories, capsys):
    command = ["attention", str(directories["learned"]), *arguments]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bert-jax attention: error: ") and message in line


# --- in a browser ---------------------------------------------------------------------------------


class View:
    """The page in a tab, with its controls and their results."""

    def __init__(self, tab: Tab):
        self.tab = tab

    def drawn(self) -> str:
        """Waits for the maps; returns the pictures of the maps and of the lines."""
        for _ in range(600):
            if self.tab.evaluate("document.querySelector('#maps').dataset.drawn") == "all":
                break
            self.tab.settle()
        else:
            pytest.fail("the maps are not drawn")
        return self.tab.evaluate(
            "[...document.querySelectorAll('#maps, #links')].map(c => c.toDataURL()).join(' ')"
        )

    def text(self, selector: str) -> str:
        return self.tab.evaluate(f"document.querySelector({selector!r}).textContent")

    def select(self, name: str, value: object) -> None:
        self.tab.evaluate(
            f"(() => {{ const s = document.getElementById({name!r}); s.value = {str(value)!r};"
            "s.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )
        self.tab.settle()

    def chosen(self) -> tuple[int, int, int]:
        """Returns layer, head and token, from 0, as the selects show them."""
        return tuple(
            self.tab.evaluate(
                "['layer', 'head', 'token'].map(n => Number(document.getElementById(n).value))"
            )
        )

    def rows(self) -> tuple[list[int], np.ndarray]:
        """Returns the tokens of the step-by-step view, and the numbers of each."""
        found = self.tab.evaluate(
            "[...document.querySelectorAll('#neurons tbody tr')].map(r => [Number(r.dataset.token),"
            "...[...r.cells].slice(3).map(c => Number(c.textContent))])"
        )
        return [int(row[0]) for row in found], np.array([row[1:] for row in found])

    def pair(self) -> np.ndarray:
        """Returns q, k and product of every dimension."""
        return np.array(
            self.tab.evaluate(
                "[...document.querySelectorAll('#pair-table tbody tr')]"
                ".map(r => [...r.cells].slice(1).map(c => Number(c.textContent)))"
            )
        )


_HALF = 0.51e-4  # of the last decimal on the page


def assert_steps(view: View, full: dict, key: int) -> None:
    """Asserts that all numbers of the chosen head, token and pair equal those of --json."""
    layer, number, token = view.chosen()
    head = full["layers"][layer]["heads"][number]
    tokens, numbers = view.rows()
    seen = [t for t, n in enumerate(full["sequence_ids"]) if n == full["sequence_ids"][token]]
    assert sorted(tokens) == seen
    names = ["query_key", "position", "scores", "weights"]
    if head["position"] is None:
        names = ["query_key", "weights"]
    expected = np.array([[head[name][token][t] for name in names] for t in tokens])
    np.testing.assert_allclose(numbers, expected, atol=_HALF, rtol=0)
    query, asked = np.array(head["query"][token]), np.array(head["key"][key])
    expected = np.stack([query, asked, query * asked], axis=1)
    np.testing.assert_allclose(view.pair(), expected, atol=_HALF + 1e-5, rtol=0)
    weight = f"{head['weights'][token][key]:.4f}"
    said = view.text("#pair")
    assert f"“{full['tokens'][token]}” ({token + 1})" in said
    assert said.endswith(f"{weight}.") or abs(float(said[-7:-1]) - float(weight)) < 1.1e-4


@pytest.mark.browser
def test_a_window_is_not_a_sequence_and_long_tokens_fit_on_the_page(tmp_path, capsys, browser):
    file = tmp_path / "attention.html"
    source = checkpoint("learned", vocabulary(tmp_path / "words"), attention_window=4)
    texts = ["w3 w1 w4 w1 w5 w9", "w2 w6 w5"]
    found = AttentionProbe(source, load_tokenizer(source.tokenizer))(texts, packed=True)
    # The vocabulary has no long word.
    tokens = (found.tokens[0], "w" * 80, *found.tokens[2:])
    found = dataclasses.replace(found, tokens=tokens)
    about = {"checkpoint": "x", "step": 1, "texts": texts, "position_embedding_type": "learned"}
    document = AttentionDocument(found, about=about)
    file.write_text(attention_page.render(document.compact()), encoding="utf-8")
    tab = browser.open(file, width=390)
    view = View(tab)
    # The window of the second of eight tokens is two to either side; the other text has five.
    assert view.text("#neuron-status") == (
        "5 tokens of other sequences are masked. 4 tokens outside the layer's window are masked."
    )
    assert "w" * 80 in view.text("#pair") and tab.overflow() <= 0
    assert tab.problems == []
    tab.close()


@pytest.mark.browser
@pytest.mark.parametrize(
    ("kind", "packed", "width", "dark"),
    [
        ("learned", False, 1400, False),
        ("learned", True, 390, True),
        ("relative_key_query", True, 1400, True),
        ("relative_key_query", False, 390, False),
    ],
)
def test_every_control(kind, packed, width, dark, directories, tmp_path, capsys, browser, pictures):
    """Layer, head, token, key, order, pointing, keys, colors; all numbers equal those of --json."""
    file = tmp_path / "attention.html"
    options = ["--packed"] if packed else []
    full = json.loads(
        attention(capsys, directories[kind], *_TEXTS, "--html", file, "--json", *options)
    )
    tab = browser.open(file, width=width, dark=dark)
    view = View(tab)
    picture = view.drawn()
    tab.screenshot(pictures / f"attention-{kind}-{width}-{'dark' if dark else 'light'}.png")
    assert tab.overflow() <= 0 and view.chosen() == (0, 0, 1)
    # Every drawn weight.
    drawn = tab.evaluate(
        "Array.from({length: attention.layers}, (_, l) => Array.from({length: attention.heads},"
        "(_, h) => Array.from(attention.weights(l, h))))"
    )
    weights = in_full(full, "weights")
    np.testing.assert_allclose(np.reshape(drawn, weights.shape), weights, atol=1e-6, rtol=0)
    assert_steps(view, full, key=0)

    view.select("layer", 1)
    view.select("head", 2)
    view.select("token", 3)
    assert view.chosen() == (1, 2, 3)
    assert_steps(view, full, key=0)
    other = view.drawn()
    assert other.split()[0] == picture.split()[0], "maps stay"
    assert other.split()[1] != picture.split()[1], "lines do not"

    # All heads: a click on a map, the arrow keys, pointing.
    left, top, *_ = tab.place("#maps")
    cell = tab.evaluate("document.querySelector('.mark').offsetWidth - 2")
    tab.move(left + 22 + 1.5 * cell, top + 22 + 0.5 * cell)
    found = full["layers"][0]["heads"][1]
    said = f"Layer 1, head 2: [CLS] {found['cls_share']:.3f}, [SEP] {found['sep_share']:.3f}"
    assert view.text("#overview-status").startswith(said) and view.chosen() == (1, 2, 3)
    tab.click_at(left + 22 + 1.5 * cell, top + 22 + 0.5 * cell)
    assert view.chosen() == (0, 1, 3)
    tab.evaluate("document.querySelector('#maps').focus()")
    tab.press("ArrowDown")
    tab.press("ArrowLeft")
    assert view.chosen() == (1, 0, 3)
    assert view.text("#overview-status").startswith("Layer 2, head 1: ")

    # Lines: colored heads, all tokens or one, pointing, a token by click and by key.
    one = view.drawn()
    tab.click("#drawn label:nth-of-type(3) input")
    two = view.drawn()
    assert two != one and "the mean of heads 1, 3" in view.text("#lines-status")
    tab.click("#every")
    assert "the mean of heads 1, 2, 3" in view.text("#lines-status") and view.drawn() != two
    tab.click("#every")
    assert view.drawn() == one
    tab.click("#all")
    assert view.drawn() != one
    tab.click("#queries li:nth-child(5) button")
    assert view.chosen() == (1, 0, 4)
    best = int(np.argmax(weights[1, 0, 4]))
    most = f"“{full['tokens'][4]}” attends most to “{full['tokens'][best]}”: "
    assert view.text("#lines-status").startswith(f"{most}{weights[1, 0, 4, best]:.3f}")
    x, y, wide, high = tab.place("#keys li:nth-child(2)")
    tab.move(x + wide / 2, y + high / 2)
    best = int(np.argmax(weights[1, 0, :, 1]))
    assert view.text("#lines-status").startswith(f"“{full['tokens'][best]}” attends most to “w3”: ")
    tab.evaluate("document.querySelector('#queries li:nth-child(3) button').focus()")
    tab.press("Enter")
    assert view.chosen() == (1, 0, 2)

    # Step by step: the order, a key by click and by key, pointing at a number.
    view.select("order", "weight")
    tokens, numbers = view.rows()
    assert tokens[0] == int(np.argmax(weights[1, 0, 2]))
    assert (np.diff(numbers[:, -1]) <= 0).all()
    tab.click("#neurons tbody tr[data-token='4'] button")
    assert_steps(view, full, key=4)
    tab.evaluate("document.querySelector(\"#neurons tbody tr[data-token='1'] button\").focus()")
    tab.press("Enter")
    assert_steps(view, full, key=1)
    x, y, wide, high = tab.place("#neurons tbody tr[data-token='1'] td:nth-child(3) canvas")
    tab.move(x + wide * 2.5 / 8, y + high / 2)
    q, k, product = view.pair()[2]
    said = f"Dimension 3 of 8: q {q:.4f} × k {k:.4f} = {product:.4f}, for “w3”"
    assert view.text("#neuron-status") == said
    tab.click("#pair-numbers summary")
    assert tab.evaluate("document.querySelector('#pair-numbers').open")

    # The table of heads: sorted by entropy, and one chosen.
    tab.click("#statistics thead th:last-child button")
    rows = "[...document.querySelectorAll('#statistics tbody tr')]"
    entropies = tab.evaluate(f"{rows}.map(r => Number(r.cells[5].textContent))")
    expected = sorted(in_full(full, "entropy").ravel(), reverse=True)
    np.testing.assert_allclose(entropies, expected, atol=0.51e-3)
    first = tab.evaluate(f"{rows}[0].cells[0].textContent + {rows}[0].cells[1].textContent")
    tab.click("#statistics tbody tr button")
    assert view.chosen()[:2] == (int(first[0]) - 1, int(first[1]) - 1)

    # Colors and width change, and the pictures with them; the page stays within its window.
    before = view.drawn()
    tab.click("#theme")
    assert view.drawn() != before and tab.evaluate("page.isDark()") != dark
    tab.resize(1400 if width == 390 else 390)
    tab.settle()
    view.drawn()
    assert tab.overflow() <= 0
    assert (tab.problems, tab.requests) == ([], [file.as_uri()])
    tab.close()
