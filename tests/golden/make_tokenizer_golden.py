"""Writes tokenizer_legacy.json and tokenizer_unicode.json beside this file.

    python -m tests.golden.make_tokenizer_golden

The first holds hand-written lines with the ids that transformers' pure-Python BertTokenizerLegacy
gives them. The second lists the characters that `tokenizers` treats otherwise than that class,
because the two carry different editions of the Unicode tables. Run it under the newest supported
Python: an older one knows fewer characters.
"""

import json
import sys
import tempfile
import unicodedata
from pathlib import Path

HERE = Path(__file__).parent
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

LINES = [
    "The quick brown fox jumped over the lazy dog.",
    "unwanted running unwantedly Running UNWANTED",
    " \tTabs,\r\nnew lines\n and\u00a0no-break\u3000ideographic\u2028separators  ",
    "Café crème brûlée naïve Ångström Łódź Øresund",
    "decomposed: Cafe\u0301 A\u030angstro\u0308m",
    "\u0130stanbul I\u0131i\u0130 D\u0130YARBAKIR \u0131l\u0131k",
    "Straße STRASSE \u1e9e \u017fs \ufb01ne \u212b \u212a",
    "博推zz ah日本語abc ひらがな カタカナ 한국어",
    "𠀀𪜀 \uf900﨟 \U0002f800",
    "Ελληνικά σίσυφος ΣΑΣ",
    "Привет, мир! йог Ёлка",
    "\u0627\u0644\u0633\u0644\u0627\u0645 \u05e9\u05b8\u05dc\u05d5\u05b9\u05dd "
    "नमस\u094dत\u0947 สว\u0e31สด\u0e35",
    "emoji 💩 👩\u200d💻 🇫🇷 ❤\ufe0f done",
    "control\x00s \x01in\x7fside\x85 wor\u00adds \ufffd bell\x07 zero\u200bwidth \ufeffbom",
    "punctuation: a-b_c'd\"e!f#g%h&i(j)k*l,m.n/o:p;q?r@s[t]u{v}w~x^y`z|$5+3<4=7>2\\",
    "“quotes” ‘single’ «low» — dash – … ¿¡ § ¶ · €5 £5 °C",
    "x" * 99 + " " + "x" * 100 + " " + "x" * 101 + " " + "y" * 300,
    "é" * 100 + " " + "é" * 101,
    "I [MASK] you [SEP] and [CLS] too [PAD] [UNK]",
    "glued[MASK]glued [MASK][MASK] [mask] [ MASK ] [MASKED] ([MASK])",
    "3.14 1,000,000 2nd 50% x=y 1990s",
    "http://example.org/a_b?c=d&e=f user@example.org C++ don't it's",
    "",
    "   ",
    "\u0301",
    "\u0301a \u200d",
]


def vocabulary() -> list[str]:
    """Special tokens, some whole words, and most characters alone and with ##.

    Every eleventh is left out, so that [UNK] occurs.
    """
    from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer

    words: set[str] = set()
    for lower in (True, False):
        for line in LINES:
            words.update(BasicTokenizer(do_lower_case=lower).tokenize(line))
    characters = sorted({character for word in words for character in word})
    characters = [c for i, c in enumerate(characters) if c.isascii() or i % 11]
    pieces = ["un", "want", "##want", "##ed", "runn", "##ing", "the", "quick", "##wn", "xx", "##xx"]
    single = [*characters, *("##" + character for character in characters)]
    return [*SPECIALS, *pieces, *(token for token in single if token not in pieces)]


def legacy(tokens: list[str], *, lowercase: bool):
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vocab.txt")
        path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
        return BertTokenizerLegacy(str(path), do_lower_case=lowercase)


def differing_characters() -> list[int]:
    """Assigned characters that are cleaned or cut otherwise; composition (NFC) set aside."""
    from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer

    from bert_jax.data.tokenizer import wordpiece_model

    found = set()
    for lowercase in (True, False):
        theirs = BasicTokenizer(do_lower_case=lowercase)
        ours = wordpiece_model.build({"[UNK]": 0}, lowercase=lowercase)
        for point in range(0x110000):
            if unicodedata.category(chr(point)) in ("Cn", "Cs"):
                continue
            text = unicodedata.normalize("NFC", f"Ab{chr(point)}Cd {chr(point)}")
            cut = ours.pre_tokenizer.pre_tokenize_str(ours.normalizer.normalize_str(text))
            if [word for word, _ in cut] != theirs.tokenize(text):
                found.add(point)
    return sorted(found)


def ranges(points: list[int]) -> list[list[int]]:
    """Runs of neighbours as [first, last]."""
    result: list[list[int]] = []
    for point in points:
        if result and point == result[-1][1] + 1:
            result[-1][1] = point
        else:
            result.append([point, point])
    return result


def main() -> None:
    tokens = vocabulary()
    ids = {}
    for name, lowercase in (("uncased", True), ("cased", False)):
        tokenizer = legacy(tokens, lowercase=lowercase)
        ids[name] = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line)) for line in LINES]
    content = {"vocabulary": tokens, "lines": LINES, "ids": ids}
    _write("tokenizer_legacy.json", content)
    content = {
        "unicode": unicodedata.unidata_version,
        "python": sys.version.split()[0],
        "ranges": ranges(differing_characters()),
    }
    _write("tokenizer_unicode.json", content)


def _write(name: str, content: dict) -> None:
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    (HERE / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
