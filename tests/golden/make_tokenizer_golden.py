"""Writes tokenizer_unicode.json beside this file.

    python -m tests.golden.make_tokenizer_golden

It lists the characters that `tokenizers` treats otherwise than transformers' pure-Python
BertTokenizerLegacy, because the two carry different editions of the Unicode tables. Run it under
the newest supported Python: an older one knows fewer characters.
"""

import json
import sys
import unicodedata
from pathlib import Path

HERE = Path(__file__).parent


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
    content = {
        "unicode": unicodedata.unidata_version,
        "python": sys.version.split()[0],
        "ranges": ranges(differing_characters()),
    }
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    (HERE / "tokenizer_unicode.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
