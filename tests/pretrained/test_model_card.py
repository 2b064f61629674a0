"""The model card says what the workdir's records say, and nothing else."""

import json
import re

import pytest

from bert_jax.__main__ import main
from bert_jax.config import Optimizer, from_dict, to_dict
from bert_jax.config.fields import section, setting
from bert_jax.config_loader import override
from bert_jax.interchange import huggingface
from bert_jax.model.positions import Position
from bert_jax.pretrained import model_card
from bert_jax.registry import MASKS, OPTIMIZERS, POSITIONS
from bert_jax.update.lamb import Lamb
from bert_jax.update.schedules import PolynomialDecay
from bert_jax.workdir import log_reader
from tests import tiny_corpus
from tests.golden import make_modernbert
from tests.models import vocabulary


@pytest.fixture(scope="module")
def card(exported) -> str:
    return (exported / "README.md").read_text(encoding="utf-8")


def cells(card: str, section: str) -> list[list[str]]:
    """The rows of a section's table, without its head."""
    text = card.split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_front_matter(card):
    import yaml

    assert yaml.safe_load(card.split("---")[1]) == {
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["bert", "bert-jax"],
    }


@pytest.mark.parametrize(
    "stored",
    [
        {"corpus": {"fingerprint": "a", "train": {"documents": "x"}}},
        {"corpus": {"train": {"documents": 1, "tokens": 1}}},
        {"task": {"kind": "classification"}, "rows": {"train": "many"}},
    ],
    ids=str,
)
def test_what_somebody_elses_records_lack_is_left_out(tmp_path, stored):
    (tmp_path / "config.json").write_text(json.dumps({"config": {}} | stored))
    (tmp_path / "events.jsonl").write_text('{"event": "start", "time": 1.0}\n')
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "dev", "loss": 1.0}\n')
    home, config = tmp_path / "card", from_dict({})
    home.mkdir()
    model_card.write_model_card(home, tmp_path, config, step=1, parameters=1, library=None)
    text = (home / "README.md").read_text(encoding="utf-8")
    assert "Trained on" not in text and "devices: ? x device" in text


def test_the_tag_is_the_kind_that_was_written(tmp_path):
    import yaml

    words = vocabulary(tmp_path / "words")
    params = make_modernbert.params()
    huggingface.write(
        tmp_path / "hf",
        params,
        make_modernbert.MODEL,
        head=make_modernbert.HEAD,
        tokenizer=words,
    )
    for verb, source, output in (("import", "hf", "run"), ("export", "run", "again")):
        arguments = ["--checkpoint", str(tmp_path / source), "--output", str(tmp_path / output)]
        assert main([verb, *arguments]) == 0
    front = (tmp_path / "again" / "README.md").read_text(encoding="utf-8").split("---")[1]
    assert yaml.safe_load(front)["tags"] == ["modernbert", "bert-jax"]


def test_model_and_data(card, exported, corpus):
    from safetensors.numpy import load_file

    model = tiny_corpus.tiny_config().model
    (row,) = cells(card, "Model")
    assert row[:4] == [
        str(model.num_hidden_layers),
        str(model.hidden_size),
        str(model.num_attention_heads),
        str(model.intermediate_size),
    ]
    counts = json.loads((corpus / "corpus.json").read_text())["counts"]
    for split in ("train", "validation"):
        documents, tokens = (f"{counts[split][name]:,}" for name in ("documents", "tokens"))
        assert f"{documents} documents, {tokens} tokens" in card
    assert "`stories.txt`" in card and str(corpus) not in card, "names, not places"
    tensors = load_file(exported / "model.safetensors")
    # The decoder's matrix is the word embedding.
    total = sum(t.size for name, t in tensors.items() if "predictions.decoder" not in name)
    assert int(row[-1].replace(",", "")) == total


def test_the_curve_is_that_of_the_log(card, trained):
    logged = {r["step"]: r for r in log_reader.read_rows(trained) if r.get("split")}
    rows = cells(card, "Held-out loss")
    assert rows and int(rows[-1][0]) == max(logged)
    for step, loss, *_ in rows:
        assert float(loss) == pytest.approx(logged[int(step)]["mlm_loss"], rel=1e-3)


def test_recipe_and_hardware(card):
    config = tiny_corpus.tiny_config()
    rows = cells(card, "Recipe")
    assert [int(row[1].replace(",", "")) for row in rows] == [p.steps for p in config.phases]
    assert re.search(r"- devices: 2 x cpu", card) and "jax 0." in card
    assert "licence of the text" in card, "what is not recorded is said to be missing"


def test_optimiser_and_schedule_are_those_of_the_run(card):
    assert "- optimizer: `bert_adamw`, beta1 0.9, beta2 0.999, epsilon 1e-06" in card
    assert "steps of warm-up, then `bert_linear`\n" in card
    lamb = Lamb(schedule=PolynomialDecay(min_lr_ratio=0.1))
    config = tiny_corpus.tiny_config(optimizer=lamb)
    said = model_card._recipe(config, {})
    assert "- optimizer: `lamb`, beta1 0.9" in said and "momentum" not in said
    assert "steps of warm-up, then `polynomial`, min lr ratio 0.1, power 1\n" in said


@section
class Named(Optimizer, kind="named"):
    decays: tuple[float, ...] = setting((0.9, 0.99), "Several.")
    flavor: str = setting("plain", "Text.")
    is_bold: bool = setting(True, "A switch.")


@pytest.mark.parametrize("is_registered", [True, False])
def test_custom_kinds_have_their_options_in_the_card(monkeypatch, tmp_path, is_registered):
    """Also if the file that registers them was not executed."""
    for table in (OPTIMIZERS, MASKS, POSITIONS):
        monkeypatch.setattr(table, "_entries", dict(table._entries))
    OPTIMIZERS.register("named", Named)
    MASKS.register("kept", lambda *_: None)
    POSITIONS.register("named", type("NamedPosition", (Position,), {}))
    changes = ["optimizer.kind=named", "optimizer.flavor=a|b", "optimizer.schedule=polynomial",
               "data.mask=kept", "model.position_embedding_type=named"]  # fmt: skip
    values = to_dict(override(tiny_corpus.tiny_config(), changes))
    if not is_registered:
        for table in (OPTIMIZERS, MASKS, POSITIONS):
            monkeypatch.setattr(table, "_entries", {})
    model_card.write_model_card(
        tmp_path, tmp_path, from_dict(values), step=2, parameters=1, library=None
    )
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "- optimizer: `named`, beta1 0.9, " in card
    assert "decays 0.9 and 0.99, flavor a&#124;b, is bold yes\n" in card
    assert "warm-up, then `polynomial`, min lr ratio 0, power 1\n" in card
    assert "- masking: `kept`: 15% of the tokens" in card
    assert "- position embedding type: `named`\n" in card


def test_an_imported_model_has_no_invented_history(tmp_path, exported):
    assert main(["import", "--checkpoint", str(exported), "--output", str(tmp_path / "w")]) == 0
    arguments = ["--checkpoint", str(tmp_path / "w"), "--output", str(tmp_path / "hf")]
    assert main(["export", *arguments]) == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "there is no record of it here" in card and "## Recipe" not in card
    assert "imported with bert-jax" in card and "pre-trained" not in card
    assert "Parameters began as those of `hf`." in card
    arguments = ["--checkpoint", str(tmp_path / "w"), "--output", str(tmp_path / "tf1")]
    assert main(["export", "--format", "tf1", *arguments]) == 0
    as_tf1 = (tmp_path / "tf1" / "README.md").read_text()
    assert as_tf1 == card.replace("library_name: transformers\n", ""), "which cannot load those"


def test_scores_in_percent_say_so(tmp_path):
    task = {"name": "squad", "kind": "spans", "metrics": ["f1"]}
    (tmp_path / "config.json").write_text(json.dumps({"task": task}))
    scores = {"f1": 61.5, "best_f1_threshold": -3.0}
    (tmp_path / "result.json").write_text(json.dumps({"steps": 2, "scores": {"dev": scores}}))
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "split": "dev", "f1": 61.5}\n')
    (tmp_path / "out").mkdir()
    model_card.write_model_card(
        tmp_path / "out", tmp_path, tiny_corpus.tiny_config(), step=2, parameters=1, library=None
    )
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| dev | f1 | 61.5000 % |" in card and "| step | split | f1 % |" in card
    assert "| dev | best_f1_threshold | -3.0000 |" in card


def test_names_of_records_are_words(tmp_path):
    """Neither HTML nor a link, a heading, another cell or an escape comes from a record."""
    name = "x`` `\n\n# forged\n\n<script>[click](http://evil)|\x1b[2J\\<b>"
    words = r"x&#96;&#96; &#96;\n\n# forged\n\n&#60;script>&#91;click](http://evil)&#124;"
    quoted = r"``` x`` `\n\n# forged\n\n<script>[click](http://evil)|\x1b[2J\<b> ```"
    assert model_card.code(name) == quoted and model_card.code("a.txt") == "`a.txt`"
    stored = {
        "corpus": {"fingerprint": name, "tokenizer_hash": name, "sources": [name]},
        "task": {"name": name, "metrics": [name]},
        "sources": [name],
        "rows": {name: 3},
        "init_from": name,
        "recipe": {name: name},
        "versions": {name: name},
    }
    (tmp_path / "config.json").write_text(json.dumps(stored))
    (tmp_path / "result.json").write_text(json.dumps({"steps": 2, "scores": {name: {name: 0.5}}}))
    (tmp_path / "out").mkdir()
    config = tiny_corpus.tiny_config(name=name)
    model_card.write_model_card(
        tmp_path / "out", tmp_path, config, step=2, parameters=1, library=None
    )
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"Sources: {quoted}.\n" in card and "\x1b" not in card
    headings = [line for line in card.splitlines() if line.startswith("#") and "forged" in line]
    assert headings == [rf"# {words}\x1b&#91;2J\&#60;b>"]
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", card.split("---\n", 2)[2])  # of code
    assert "forged" in outside and "<" not in outside and "[c" not in outside
    assert [len(row) for row in cells(outside, "Scores")] == [3]
