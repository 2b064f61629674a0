"""The sums of minimal pairs against a plain loop over transformers, as BabyLM's scorer counts."""

import gzip
import json

import pytest

from bert_jax.__main__ import main

torch = pytest.importorskip("torch", reason="needs the 'parity' extra")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

_PAIRS = (
    ("The horse of Ada sleeps in the stable.", "The horse of Ada sleep in the stable."),
    ("Boris has a large bear.", "Boris have a large bear."),
    ("At noon Clara brings fish.", "At noon brings Clara fish."),
)


def by_hand(model, tokenizer, text: str) -> float:
    """Each token is masked by itself; special tokens have no characters."""
    found = tokenizer(text, return_offsets_mapping=True)
    total = 0.0
    for place, (_, end) in enumerate(found["offset_mapping"]):
        if end > 0:
            ids = torch.tensor([found["input_ids"]])
            target = int(ids[0, place])
            ids[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, place]
            total += float(logits.log_softmax(-1)[target])
    return total


def test_each_sum_is_that_of_a_plain_loop(exported, tmp_path, capsys):
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    model = transformers.AutoModelForMaskedLM.from_pretrained(exported).eval()
    rows = [
        {"sentence_good": good, "sentence_bad": bad, "UID": f"u{number % 2}"}
        for number, (good, bad) in enumerate(_PAIRS)
    ]
    with gzip.open(tmp_path / "pairs.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    file = tmp_path / "scores.json"
    command = ["probe", str(exported), "--pairs", str(tmp_path / "pairs.jsonl.gz")]
    assert main([*command, "--output-file", str(file)]) == 0
    said = json.loads(file.read_text(encoding="utf-8"))
    won: dict[str, list[bool]] = {}
    for ours, row in zip(said["pairs"], rows, strict=True):
        good, bad = (by_hand(model, tokenizer, row[f"sentence_{n}"]) for n in ("good", "bad"))
        assert (ours["good"], ours["bad"]) == pytest.approx((good, bad), abs=1e-3)
        won.setdefault(row["UID"], []).append(good >= bad)
    expected = {uid: 100 * sum(each) / len(each) for uid, each in won.items()}
    expected["mean"] = sum(expected.values()) / len(expected)
    assert {f["name"]: f["value"] for f in said["findings"]} == pytest.approx(expected)
