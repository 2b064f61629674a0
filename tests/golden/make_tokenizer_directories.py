"""Writes the ids and offsets of transformers into tokenizer_directories.json.gz.

    python -m tests.golden.make_tokenizer_directories

The file holds small tokenizer directories, one per kind that published checkpoints have. Run the
command once with transformers 4 and once with transformers 5: each run replaces the results of its
own version. transformers 4.57.6 and 5.24.0 with tokenizers 0.22.2 and 0.23.3 and sentencepiece
0.2.3 made the file.
"""

import base64
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "tokenizer_directories.json.gz"
TRAIN = [
    "Utrecht ligt aan de Vecht, in het midden.",
    "De toren in Utrecht is 112 meter hoog en oud.",
    "The red horse eats hay in the stable.",
    "Größe und Ärger: l'été à Zürich, naïve!",
    "Привет, мир. Ёлка. In 3,000, 10, 12, x",
    "東京 日本語 한국어",
]
LINES = [
    *TRAIN,
    "  De  TOREN\tis   hoog. ",
    "hay<mask> hay [MASK]hay, <mask>.",
    "horse 2024-25 (Utrecht) a_b don't",
    "Cafe\u0301 ÉTÉ ﬁ ½ \u00a0x",
    "東京タワー🙂 hay",
    "[E1] the [E1]horse EXTRA extra",
    "",
]


def observe(directory: Path) -> dict[str, Any]:
    """Returns the ids and offsets of the lines, without special tokens around them, and the ids of
    a text and a pair, as transformers gives them; or its error.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory)
        found = [
            tokenizer(line, add_special_tokens=False, return_offsets_mapping=True) for line in LINES
        ]
        pair = [tokenizer("hay").input_ids, tokenizer("hay", "horse").input_ids]
    except Exception as error:  # any: a class may need a package that is absent
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {
        "ids": [each.input_ids for each in found],
        "offsets": [[list(span) for span in each.offset_mapping] for each in found],
        "pair": pair,
    }


def write(files: dict[str, str], directory: Path) -> Path:
    """Writes the files of a directory, as the golden file has them."""
    directory.mkdir(parents=True)
    for name, content in files.items():
        data = base64.b64decode(content) if name.endswith(".model") else content.encode()
        (directory / name).write_bytes(data)
    return directory


def main() -> None:
    import transformers

    golden = json.loads(gzip.decompress(FILE.read_bytes()))
    version = transformers.__version__.partition(".")[0]
    with tempfile.TemporaryDirectory() as folder:
        for name, entry in golden.items():
            entry[version] = observe(write(entry["files"], Path(folder, name)))
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
