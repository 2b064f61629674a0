"""The benchmark of mixers: exponents of known costs, and the reach of each layer."""

import json

import pytest

from benchmarks import layer_cost


def test_exponents_of_a_known_cost_are_found_with_their_interval():
    points = [
        {"length": n, "width": 8, "seconds": n**2 * noise, "bytes": 3 * n, "flops": n**1.5,
         "rounds": [n**2, n**1.9]}
        for n, noise in zip((64, 128, 256, 512, 1024, 2048), (1.1, 0.9, 1.1, 0.9, 1.1, 0.9),
                            strict=True)
    ]  # fmt: skip
    found = layer_cost.exponents(points, "length", {"width": 8})
    value, reach = found["seconds"]
    assert 0.05 < reach < 0.2 and abs(value - 2) < reach
    assert found["bytes"] == (pytest.approx(1), pytest.approx(0, abs=1e-6))
    assert found["flops"][0] == pytest.approx(1.5)
    assert found["rounds"] == (pytest.approx(1.9), pytest.approx(2))


def test_steps_and_reach_are_those_of_table_1():
    length = 24
    found = {kind: layer_cost.ways(kind, length=length, width=16) for kind in layer_cost.KINDS}
    assert found == {
        "attention": (1, length - 1),
        "restricted": (1, layer_cost.WINDOW // 2),
        "convolution": (1, 1),
        "gru": (length, length - 1),
    }


def test_a_measurement_is_reused(tmp_path, monkeypatch, capsys):
    command = ["layer_cost", "--workdir", str(tmp_path), "--rounds", "2"]
    command += ["--lengths", "8", "12", "16", "--widths", "8", "12", "16"]
    monkeypatch.setattr("sys.argv", command)
    monkeypatch.setattr(layer_cost, "KINDS", {"gru": layer_cost.KINDS["gru"]})
    layer_cost.main()
    first = (tmp_path / "points.json").read_bytes()
    assert len(json.loads(first)["points"]) == 3 * 3
    text = (tmp_path / "study.md").read_text()
    assert "| gru | n d² | n | n | 1 |" in text and "nan" not in text
    monkeypatch.setattr(layer_cost, "measure", None)  # a call would fail
    layer_cost.main()
    assert (tmp_path / "points.json").read_bytes() == first
    monkeypatch.setattr("sys.argv", [*command, "24"])
    with pytest.raises(SystemExit, match="has measurements of"):
        layer_cost.main()
