"""The page of a report: its numbers equal those of `--json` for all kinds of runs."""

import html
import json
import shutil
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.workdir import run_directory
from bert_jax_lab.reports import charts, goodput, report_page, run_data
from tests.lab.reports.test_page import Outline, assert_asks_for_nothing
from tests.written_runs import write_config, write_finetuning, write_lines, write_run

_HOSTILE = '<img src=x onerror=alert(1)> \' & "quoted" </script><script>alert(2)'


def page_of(page: Path, *workdirs: Path, capsys) -> tuple[Outline, list[dict]]:
    """Writes the page with the command; returns it, and the runs from `--json`."""
    capsys.readouterr()
    command = ["report", *map(str, workdirs), "--html", str(page), "--json"]
    assert main(command) == 0
    printed = json.loads(capsys.readouterr().out)
    outline = assert_asks_for_nothing(page.read_text(encoding="utf-8"))
    return outline, printed if isinstance(printed, list) else [printed]


def data_of(directory: Path) -> dict:
    return run_data.read(directory, name=directory.name)


def test_the_numbers_are_those_of_json_and_of_the_logs(trained, tmp_path, capsys):
    outline, (printed,) = page_of(tmp_path / "run.html", trained, capsys=capsys)
    assert outline.data()["runs"] == [printed]
    account = goodput.account(trained)
    assert {name: printed[name] for name in account} == account
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    training = [row for row in rows if "split" not in row]
    held_out = [row for row in rows if "split" in row]
    for field in ("step", "mlm_loss", "grad_norm", "tokens_per_second"):
        assert printed["training"][field] == [row[field] for row in training]
    for field in ("step", "mlm_loss", "perplexity"):
        assert printed["held_out"]["validation"][field] == [row[field] for row in held_out]
    # Two phases: 160 updates of 16 rows of 32, then 40 of 8 rows of 48.
    seen = printed["training"]["positions_seen"]
    assert (seen[0], seen[159], seen[-1]) == (512, 160 * 512, 160 * 512 + 40 * 8 * 48)
    spent = sum(row["step_seconds"] * row["steps"] for row in training)
    assert printed["training"]["training_seconds"][-1] == pytest.approx(spent)
    assert printed["seen"] == {name: training[-1][name] for name in ("words", "epochs")}
    text = outline.text
    for shown in (f"{held_out[-1]['mlm_loss']:,.5g}", f"{account['goodput']:.1%}", "200 of 200"):
        assert shown in text
    (loss, *_) = outline.data()["charts"]
    assert loss["lines"] == [{"value": printed["unigram_entropy_nats"], "label": "unigram entropy"}]
    assert loss["unit"] == "nats"
    # Every chart has a text alternative and a table.
    drawings = [a for _, a in outline.tags if a.get("class") == "drawing"]
    assert len(drawings) == len(outline.data()["charts"]) > 6
    assert all(a["aria-label"] and a["role"] == "img" for a in drawings)
    assert {"directory", "absolute"}.isdisjoint(printed["corpus"])


def test_restarts_skips_and_lost_work(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    outline, (printed,) = page_of(tmp_path / "run.html", run, capsys=capsys)
    assert printed["skipped_steps"] == [150, 151] and printed["starts"] == 2
    first, second = printed["processes"]
    assert (first["end"], first["to_step"]) == ("no last word", 120)
    assert (second["end"], second["from_step"], second["to_step"]) == ("finished", 100, 200)
    assert printed["seconds"]["lost_work"] == pytest.approx(2.0)
    lost = [part for part in first["parts"] if part[0] == "lost_work"]
    assert lost == [["lost_work", pytest.approx(20.0), pytest.approx(22.0)]]
    assert printed["training"]["mlm_loss"][149] is None
    assert [event["event"] for event in printed["events"]] == ["resume", "stop"]
    assert printed["events"][0] == {
        "event": "resume", "after": pytest.approx(50.0), "step": 100, "text": ""
    }  # fmt: skip
    assert "no last word: killed, or still running" in outline.text
    classes = [attributes.get("class") for _, attributes in outline.tags]
    assert classes.count("process lost") == classes.count("process") == 1


def test_a_run_whose_events_are_lost_has_no_shares_of_a_wall_time(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    (run / "events.jsonl").unlink()
    account = goodput.account(run)
    assert account["seconds"]["training"] > 0 and account["seconds"]["unaccounted"] == 0
    assert main(["report", str(run)]) == 0
    assert "%" not in capsys.readouterr().out


def test_events_explain_restarts(tmp_path):
    run = write_run(tmp_path / "run")
    with (run / "events.jsonl").open("a") as events:
        for event in (
            {"event": "change", "step": 200, "fields": [["optimizer.learning_rate", 0.1, 0.2]]},
            {"event": "save_failed", "in_a_row": 2, "message": "disk full"},
            {"event": "save_failed", "in_a_row": 3, "share": 0.51234},
        ):
            events.write(json.dumps({**event, "time": 2000.0}) + "\n")
    found = data_of(run)
    assert [event["text"] for event in found["events"][-3:]] == [
        "optimizer.learning_rate: 0.1 to 0.2",
        "in a row 2; message disk full",
        "in a row 3; share 0.512",
    ]
    text = Outline(report_page.render([found])).text
    assert "run: save failed" in text and "message disk full" in text


def test_several_runs_are_overlaid_and_their_configs_compared(trained, tmp_path, capsys):
    """One that learns faster, one that has not begun, and one that is a task."""
    runs = [
        trained,
        write_run(tmp_path / "fast", rate=8e-3),
        write_config(tmp_path / "empty"),
        write_finetuning(tmp_path / "tuned"),
    ]
    outline, printed = page_of(tmp_path / "runs.html", *runs, capsys=capsys)
    assert outline.data()["runs"] == printed
    assert [run["name"] for run in printed] == [
        f"{trained.parent.name}/workdir",
        "fast",
        "empty",
        "tuned",
    ]
    fields = dict(run_data.differences(printed))
    assert fields["optimizer.learning_rate"] == [5e-3, 8e-3, 5e-3, 5e-3]
    assert "model.hidden_act" not in fields
    assert "optimizer.learning_rate" in outline.text and "fine-tuning: text" in outline.text
    charts = outline.data()["charts"]
    assert len(charts) > 8
    main_losses = {(s["run"], s["table"], s["column"]) for s in charts[0]["series"]}
    assert main_losses == {
        *((run, table, "mlm_loss") for run in (0, 1) for table in ("training", "validation")),
        (3, "training", "loss"),
    }
    assert {line["label"] for line in charts[0]["lines"]} == {
        f"unigram entropy ({trained.parent.name}/workdir)",
        "unigram entropy (fast)",
    }
    alone, _ = page_of(tmp_path / "same.html", trained, capsys=capsys)
    assert not [a for _, a in alone.tags if a.get("id") == "differences"]


def test_a_fine_tuning(tmp_path, capsys):
    run = write_finetuning(tmp_path / "tuned")
    outline, (printed,) = page_of(tmp_path / "run.html", run, capsys=capsys)
    assert printed["kind"] == "fine-tuning: text" and printed["task"] == "text"
    assert printed["seen"]["examples"] == 240 and printed["seen"]["epochs"] == 6
    assert printed["last"]["held_out"]["dev"]["accuracy"] == 0.875
    columns = {s["column"] for chart in outline.data()["charts"] for s in chart["series"]}
    assert {"loss", "accuracy", "macro_f1", "examples_per_second"} <= columns


def test_a_diverged_run_is_marked(tmp_path, capsys):
    run = write_finetuning(tmp_path / "tuned")
    words = "one answer for all rows"
    outline, (printed,) = page_of(tmp_path / "run.html", run, capsys=capsys)
    assert not printed["diverged"] and words not in outline.text
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"diverged": True}))
    outline, (printed,) = page_of(tmp_path / "run.html", run, capsys=capsys)
    assert printed["diverged"] and words in outline.text
    # A result from before the run was rolled back does not count.
    (run / "result.json").write_text(json.dumps(result | {"diverged": True, "steps": 999}))
    assert not page_of(tmp_path / "run.html", run, capsys=capsys)[1][0]["diverged"]


def test_a_run_that_has_not_begun(tmp_path, capsys):
    run = write_config(tmp_path / "run")
    outline, (printed,) = page_of(tmp_path / "run.html", run, capsys=capsys)
    assert outline.data() == {"runs": [printed], "charts": []}
    assert printed["step"] == 0 and printed["processes"] == []
    assert "not started" in outline.text


def test_hostile_names_and_values_stay_text(tmp_path, capsys):
    """The name of the workdir, a field of the config, a reason, a source, a column of the log."""
    name = _HOSTILE.replace("/", "\u2215")
    run = write_run(tmp_path / name)
    stored = json.loads((run / "config.json").read_text())
    stored["config"]["name"] = stored["corpus"]["sources"][0] = stored["versions"]["jax"] = _HOSTILE
    (run / "config.json").write_text(json.dumps(stored))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row[_HOSTILE] = 1.0
    write_lines(run / "metrics.jsonl", rows)
    with (run / "events.jsonl").open("a") as events:
        stop = {"event": "stop", "time": 2000.0, "step": 200, "reason": _HOSTILE}
        events.write(json.dumps(stop) + "\n")
    outline, printed = page_of(tmp_path / "runs.html", run, capsys=capsys)
    assert outline.data()["runs"] == printed and printed[0]["name"] == name
    assert not [tag for tag, _ in outline.tags if tag == "img"]
    assert outline.text.count(_HOSTILE) > 4 and name in outline.text
    assert f"stopped ({_HOSTILE})" in outline.text


def test_missing_numbers_are_empty(tmp_path):
    run = write_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    changed = json.loads(lines[4]) | {"loss": float("nan"), "grad_norm": float("inf")}
    write_lines(run / "metrics.jsonl", [*map(json.loads, lines[:4]), changed])
    found = data_of(run)
    assert found["training"]["loss"][4] is found["training"]["grad_norm"][4] is None
    assert_asks_for_nothing(report_page.render([found]))


def test_a_long_log_keeps_its_outline(tmp_path):
    """2,000 of 4,000 rows stay, including every outlier, and the page reports it."""
    run = write_run(tmp_path / "run", rows_a_step=20)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    training = [row for row in rows if "split" not in row]
    training[1234]["mlm_loss"], training[2345]["mlm_loss"] = 9.5, 0.5
    write_lines(run / "metrics.jsonl", rows)
    found = data_of(run)
    kept = dict(zip(found["training"]["step"], found["training"]["mlm_loss"], strict=True))
    assert found["training_rows"] == 4000 and 1900 < len(kept) <= run_data.MOST_ROWS + 1
    assert (kept[1235], kept[2346], kept[4000]) == (9.5, 0.5, training[-1]["mlm_loss"])
    assert kept[3000] is None  # the skipped update
    assert all(training[step - 1]["mlm_loss"] == loss for step, loss in kept.items())
    text = Outline(report_page.render([found])).text
    assert f"{len(kept):,} of 4,000 training rows are drawn" in text


def test_the_expected_band_is_drawn_if_it_is_known(tmp_path):
    run = data_of(write_run(tmp_path / "run"))
    expected = run | {"expected": [[0, 5.0, 6.0], [100, 2.5, 3.0], [200, 2.0, 2.5]]}
    (loss, *others) = charts.charts([run, expected])
    assert loss["expected"] == [1] and not any(chart["expected"] for chart in others)
    assert "as expected" in Outline(report_page.render([expected])).text


def test_correct_predictions_are_marked(tmp_path):
    run = data_of(write_run(tmp_path / "run"))
    run["examples"] = [
        {"text": f"a [MASK] {n}", "word": "dog", "candidates": [[guess, 0.6], ["cow", 0.1]],
         "is_right": guess == "dog"}
        for n, guess in enumerate(("dog", "cat", "dog"))
    ]  # fmt: skip
    page = report_page.render([run])
    marked = [first_guess(page, f"a [MASK] {n}").count("\N{CHECK MARK}") for n in range(3)]
    assert marked == [1, 0, 1] and "held out: 2 of 3 are" in Outline(page).text


def test_the_loss_of_an_objective_with_one_loss_is_shown_once(tmp_path):
    run = data_of(write_run(tmp_path / "run"))
    assert run["loss"] == "mlm_loss" and "Loss: loss" in headings_of(run)
    alone = json.loads(json.dumps(run))
    for columns in (alone["training"], *alone["held_out"].values()):
        columns["loss"] = columns["mlm_loss"]
        columns.pop("nsp_loss", None)
    headings = headings_of(alone)
    assert headings[0] == "Loss" and not any(name.startswith("Loss: ") for name in headings)
    text = Outline(report_page.render([alone])).text
    assert "held-out mlm_loss" in text and "held-out loss" not in text
    assert "Loss: loss" in headings_of(alone, run)  # the other run has two losses


def headings_of(*runs: dict) -> list[str]:
    return [chart["heading"] for chart in charts.charts(runs)]


def test_hidden_words_are_filled_in_where_model_and_corpus_are_here(trained, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["report", str(trained), "--html", str(page), "--json"]) == 0
    (first, *more) = json.loads(capsys.readouterr().out)["examples"]
    assert len(more) == 7 and "Masked words, held out" in Outline(page.read_text()).text
    assert html.escape(first["text"]) in page.read_text() and first["candidates"][0][
        0
    ] in first_guess(page.read_text(), first["text"])
    marked = "\N{CHECK MARK}" in first_guess(page.read_text(), first["text"])
    assert marked == first["is_right"] == (first["candidates"][0][0] == first["word"])
    right = sum(each["is_right"] for each in (first, *more))
    assert f"held out: {right} of 8 are" in Outline(page.read_text()).text
    # Nor if the corpus was prepared again with another vocabulary.
    again = shutil.copytree(trained, tmp_path / "again")
    held = json.loads((again / "config.json").read_text())
    source, other = tmp_path / "text.txt", tmp_path / "other"
    source.write_text("\n\n".join(f"Another text, number {n} of ten." for n in range(20)))
    command = ["prepare", "--source", str(source), "--output-dir", str(other), "--vocab-size", "90"]
    assert main([*command, "--validation-fraction", "0.4"]) == 0
    held["corpus"]["directory"] = held["corpus"]["absolute"] = str(other)
    (again / "config.json").write_text(json.dumps(held))
    assert main(["report", str(again), "--html", str(page)]) == 0
    assert "was built with another tokenizer" in capsys.readouterr().err
    write_run(tmp_path / "logs")
    assert main(["report", str(tmp_path / "logs"), "--html", str(page)]) == 0
    assert "no hidden words are filled in: " in capsys.readouterr().err
    assert "Masked words, held out" not in page.read_text()


def test_the_corpus_of_a_run_is_found_from_anywhere(trained, corpus, tmp_path, monkeypatch):
    """Also for a run with only a relative path, and if all folders were moved together."""
    moved = tmp_path / "moved" / "runs"
    shutil.copytree(corpus, moved / "corpus")
    (moved / "workdir").mkdir()
    stored = json.loads((trained / "config.json").read_text())

    def found(**named: str) -> Path | None:
        values = {k: v for k, v in stored["corpus"].items() if k not in ("directory", "absolute")}
        run = {**stored, "corpus": {**values, **named}}
        (moved / "workdir" / "config.json").write_text(json.dumps(run))
        return run_directory.corpus_of(moved / "workdir")

    monkeypatch.chdir(corpus.parent)
    assert found(directory=corpus.name) == Path(corpus.name)
    monkeypatch.chdir(tmp_path)
    assert run_directory.corpus_of(trained) == corpus
    assert found(directory="runs/corpus") == moved / "corpus"
    assert found(directory="runs/corpus", absolute=str(corpus)) == corpus
    # Another corpus with this name is not used.
    shutil.copytree(moved / "corpus", tmp_path / "runs" / "corpus")
    manifest = (tmp_path / "runs" / "corpus" / "corpus.json").read_text()
    (tmp_path / "runs" / "corpus" / "corpus.json").write_text(manifest.replace("a", "b"))
    assert found(directory="runs/corpus") == moved / "corpus"
    assert found(directory="elsewhere") == Path("elsewhere") and found() is None


def first_guess(page: str, sentence: str) -> str:
    """Returns the row of a table with the sentence."""
    start = page.index(html.escape(sentence))
    return page[start : page.index("</tr>", start)]
