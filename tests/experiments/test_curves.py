"""Evaluations read back from TensorBoard files, and charts that are whole pictures."""

import math
import xml.etree.ElementTree as ET
from pathlib import Path

from experiments.curves import COLOURS, Line, read_curves, write_chart
from lib.reporting import Charts

SVG = "{http://www.w3.org/2000/svg}"


def test_evaluations_are_read_back(tmp_path: Path) -> None:
    with Charts(tmp_path / "first") as charts:
        charts.scalars({"test_reward": 10, "test_reward_interval": 3, "test_kl": 0.25, "lr": 1}, 100)
        charts.scalars({"test_reward": 20, "test_reward_interval": math.nan}, 50)
    found = read_curves(tmp_path)
    assert set(found) == {"score", "interval", "kl"}
    assert found["score"].steps.tolist() == [50, 100]
    assert found["score"].values.tolist() == [20, 10]
    assert math.isnan(found["interval"].values[0])
    assert found["kl"].values.tolist() == [0.25]


def test_the_parts_of_a_run_are_put_together(tmp_path: Path) -> None:
    for run, points in (("1-first", {100: 1.0, 200: 2.0}), ("2-second", {200: 3.0, 300: 4.0})):
        with Charts(tmp_path / run) as charts:
            for step, score in points.items():
                charts.scalars({"test_reward": score}, step)
    found = read_curves(tmp_path)["score"]
    assert (found.steps.tolist(), found.values.tolist()) == ([100, 200, 300], [1, 3, 4])


def test_a_folder_without_curves_has_none(tmp_path: Path) -> None:
    assert read_curves(tmp_path) == {}


def test_a_chart_is_a_whole_picture(tmp_path: Path) -> None:
    path = tmp_path / "chart.svg"
    one, two = COLOURS[:2]
    panels = {
        "score": [
            Line([0, 10, 20], [1, 2, 3], [0.5, math.nan, 0.5], one),
            Line([20, 30], [5, 4], None, two),
        ],
        "never measured": [],
        "KL": [Line([0, 30], [0, 0], None, one)],
    }
    write_chart(path, panels, {one: "v0", two: "v1 & more $x$"})
    picture = ET.parse(path).getroot()
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"v0", "v1 & more $x$", "score", "KL"} <= set(texts)
    assert "never measured" not in texts
    assert path.read_text().count("stroke-width: 1.8; stroke-linecap: square") == 3, "lines"
    # Two panels below each other, neither outside the picture.
    clips = {rect.attrib["y"]: rect for rect in picture.iter(f"{SVG}rect")}
    first, second = (clips[y].attrib for y in sorted(clips, key=float))
    end = float(first["y"]) + float(first["height"])
    assert end < float(second["y"])
    assert float(second["y"]) + float(second["height"]) <= float(picture.attrib["viewBox"].split()[3])
    assert "nan" not in path.read_text()
