"""The report: complete, self-contained, the same for the same facts, and safe against hostile text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from analysis.charts import Series, line_chart, stacked_bars, strip_chart, ticks
from analysis.index import RunIndex
from analysis.series import epoch_rows
from commands.config import load_config
from commands.folder import RunFolder
from commands.report import report, report_html
from schemas import HELDOUT, TOPICS, make
from schemas.events import EvaluationCompleted, SynthesisFailure, VariantRejected
from streams.archive.segments import ArchiveLog
from streams.log.port import partition_counts
from tests.commands.browser import drawn
from tests.streams.building import RUN, group, opening, task
from tests.streams.scripted import play
from tests.streams.test_fold import mean_of

SECTIONS = (
    "rewards",
    "composition",
    "zones",
    "generated-zones",
    "zone-rewards",
    "first-rewards",
    "variance",
    "yield",
    "retirements",
    "epochs",
    "facts",
)


def evaluation(step: int, reward: float) -> EvaluationCompleted:
    return make(
        EvaluationCompleted,
        RUN,
        suite=HELDOUT,
        step=step,
        policy_version=step,
        num_tasks=4,
        num_rollouts=1,
        mean_reward=reward,
        accuracy=reward,
        by_category={},
    )


def run_events() -> list:
    settings = {"batch_size": 6, "cooldown": 1, "injection_frac": 0.5, "queue_expiry_epochs": 1}
    _, log = play(12, 6, settings, mean_of, lambda task_id: task_id.endswith("3"))
    varied = [
        group(e.task_id, e.step, [0.0, 1.0], e.epoch)
        if type(e).__name__ == "RolloutGroupCompleted" and e.step == 2
        else e
        for e in log
    ]
    refused = make(
        VariantRejected,
        RUN,
        signal_id="s",
        attempt=0,
        candidate=task("c"),
        failure=SynthesisFailure.GATE_EXECUTION,
        detail="x",
    )
    return [*varied, evaluation(0, 0.2), evaluation(6, 0.6), refused]


FACTS = RunIndex().add(run_events())
HTML = report_html(FACTS)


def section(html: str, name: str) -> str:
    return re.search(rf'<section id="{name}".*?</section>', html, re.S).group()


def test_every_plot_and_table_is_there_and_has_marks() -> None:
    for name in SECTIONS:
        body = section(HTML, name)
        assert "nothing recorded" not in body, name
        assert re.search(r"<rect|<circle|<td", body), name


def test_the_plots_show_the_numbers_of_the_run() -> None:
    rows = epoch_rows(FACTS)
    composition = section(HTML, "composition")
    for row in rows:
        assert f"<title>{row.epoch + 1}, human: {row.num_human}</title>" in composition
    dots = re.findall(r"<title>\d+: ([\d.]+)</title>", section(HTML, "first-rewards"))
    assert sorted(dots) == sorted(f"{value:.3f}" for row in rows for value in row.first_means) != []
    assert "held-out tasks: 6, 0.6" in section(HTML, "rewards")
    assert sum(row.num_failed for row in rows) == sum(
        map(int, re.findall(r"failed: (\d+)</title>", section(HTML, "yield")))
    )
    assert "gate_execution" in section(HTML, "yield")
    for row in rows:
        for reason, count in row.retired.items():
            assert f"<title>{row.epoch + 1}, {reason.replace('_', ' ')}: {count}</title>" in section(
                HTML, "retirements"
            )


def test_the_same_facts_give_the_same_bytes() -> None:
    assert report_html(RunIndex().add(run_events())) == HTML


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    assert not re.findall(r"""(?:src|href)\s*=|url\(|@import|<script|<link|<iframe""", HTML)
    assert set(re.findall(r"https?://[^\"' ]+", HTML)) <= {"http://www.w3.org/2000/svg"}


def test_hostile_names_are_text() -> None:
    class Tags(HTMLParser):
        found: list[str] = []

        def handle_starttag(self, tag: str, attrs: list) -> None:
            self.found.append(tag)

    evil = '<script>alert(1)</script>"onload="x'
    Tags().feed(report_html(RunIndex().add(opening(2, 1, {}, run_id=evil))))
    assert "script" not in Tags.found and "section" in Tags.found


def test_a_run_that_has_not_begun_has_a_report_too() -> None:
    assert "nothing recorded yet" in report_html(RunIndex()) and "nothing recorded yet" in report_html(
        RunIndex().add(opening(2, 1, {}))
    )


@pytest.mark.parametrize(
    "chart",
    [
        line_chart("n<", [Series("a&b", [(1, 0.5), (2, None), (3, float("nan")), (4, 1.0)], "a")], "x", "y"),
        stacked_bars("n", ["1", "2"], [("a", "a", [1, 0]), ("b", "b", [0, 3])], "x", "y"),
        strip_chart("n", {"1": [0.5], "2": [0.1, 0.9, 0.9], "3": []}, "x", "y", (0.2, 0.85)),
    ],
)
def test_charts_are_well_formed_and_inside_their_frame(chart: str) -> None:
    root = ElementTree.fromstring(chart[chart.index("<svg") :])
    _, _, width, height = map(float, root.get("viewBox").split())
    for mark in root.iter():
        x, y = float(mark.get("cx") or mark.get("x") or 0), float(mark.get("cy") or mark.get("y") or 0)
        assert 0 <= x <= width and 0 <= y <= height
        assert float(mark.get("height") or 0) >= 0 and "nan" not in str(mark.attrib)


def test_a_missing_value_breaks_a_line_instead_of_bridging_it() -> None:
    chart = line_chart("n", [Series("a", [(1, 0.5), (2, None), (3, 1.0), (4, 1.0)], "a")], "x", "y")
    path = re.search(r'<path d="([^"]*)"', chart).group(1)
    assert path.count("M") == 2 and path.count("L") == 1


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.003), (1, 5000), (0, 7), (3, 4)])
def test_ticks_are_round_few_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 12 and low - 1e-9 <= found[0] and found[-1] <= high + 1e-9


def test_the_command_writes_a_page_that_a_browser_draws(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / RUN).create(load_config(None, {}, []))
    archive = ArchiveLog(folder.archive, partition_counts(TOPICS, 1, 2))
    archive.append(run_events())
    archive.close()
    report(RUN, tmp_path / "runs")
    path = folder.path.resolve() / "report.html"
    report(RUN, tmp_path / "runs", tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == path.read_text()
    dom = drawn(path.as_uri())
    assert dom.count('<svg class="chart"') == HTML.count('<svg class="chart"') > 8
