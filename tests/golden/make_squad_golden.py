"""Writes squad_official.json beside this file: what SQuAD's own scripts say of made-up predictions.

    python -m tests.golden.make_squad_golden evaluate-v1.1.py evaluate-v2.0.py

The two are the official evaluation programs (Rajpurkar et al. 2016, 2018), which are run as they
are, once for each of the small data sets. The answers are made of what the scripts treat apart:
articles, punctuation, case, white space, words that come twice, empty and unanswerable ones.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
_WORDS = (
    *("a", "An", "the", "theory", "Denver", "denver", "Broncos", "U.S.", "us", "1,000", "1000"),
    *("«x»", "x", "naïve", "--", "New\u00a0York", "New  York", "it's", "its", "anthem"),
)
_DATA_SETS = 60


def answer(draw: random.Random) -> str:
    return draw.choice([" ", "  ", ", "]).join(draw.choices(_WORDS, k=draw.randint(1, 4)))


def data_set(draw: random.Random, *, with_unanswerable: bool) -> tuple[dict, dict]:
    """Golden answers and predictions by id. Of 1.1's, one in six is missing."""
    golds, predicted = {}, {}
    for number in range(draw.randint(1, 5)):
        name = f"q{number}"
        unanswerable = with_unanswerable and draw.random() < 0.4
        golds[name] = [] if unanswerable else [answer(draw) for _ in range(draw.randint(1, 3))]
        some = draw.choice(golds[name]) if golds[name] else ""
        kind = draw.choice(["same", "part", "case", "other", "empty", "article", "missing"])
        if kind == "missing" and not with_unanswerable and number:
            continue
        predicted[name] = {
            "same": some,
            "part": some.partition(" ")[0],
            "case": some.upper() + "!",
            "other": answer(draw),
            "article": "the",
        }.get(kind, "")
    return golds, predicted


def official(script: Path, golds: dict, predicted: dict, *, version: str) -> dict:
    questions = [
        {"id": name, "question": "?", "answers": [{"text": t, "answer_start": 0} for t in texts]}
        for name, texts in golds.items()
    ]
    data = {"version": version, "data": [{"paragraphs": [{"context": "", "qas": questions}]}]}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("data.json", "predictions.json")]
        for path, values in zip(files, (data, predicted), strict=True):
            path.write_text(json.dumps(values))
        done = subprocess.run([sys.executable, script, *files], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout[done.stdout.index("{") :])


def main(scripts: list[str]) -> None:
    draw = random.Random(0)
    found = {}
    for version, script in zip(("1.1", "2.0"), scripts, strict=True):
        found[version] = []
        for _ in range(_DATA_SETS):
            golds, predicted = data_set(draw, with_unanswerable=version == "2.0")
            said = official(Path(script), golds, predicted, version=version)
            found[version].append({"answers": golds, "predicted": predicted, "official": said})
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    (HERE / "squad_official.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
