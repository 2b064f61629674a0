"""Words at `prepare` that are typed wrong."""

import pytest

from bert_jax.__main__ import main


def test_options_of_a_runner_without_the_dashes_before_them(capsys):
    words = [
        "--source",
        "gs://b/t",
        "--output-dir",
        "gs://b/c",
        "--project",
        "mine",
        "--region",
        "here",
    ]
    with pytest.raises(SystemExit) as ended:
        main(["prepare", "--runner", "DataflowRunner", *words])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert "unrecognized arguments: --project mine --region here" in error
    assert "those of the runner come after --: ... -- --project mine --region here" in error
    with pytest.raises(SystemExit):
        main(["prepare", *words])
    assert "come after" not in capsys.readouterr().err
