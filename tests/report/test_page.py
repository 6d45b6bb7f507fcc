"""The report as a file: what it says, that nothing breaks out of it, and that it stays small."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from holdfast.config import dump, load_profile, names
from holdfast.report.page import html_page
from holdfast.report.run import distinct_names
from holdfast.report.what_if import Change, NoWhatIf, WhatIf
from tests.goodput.builder import Run
from tests.report.runs import HOSTILE, broken_run, long_run, reported
from tests.report.words import section

VOID = {"meta", "br", "img", "hr", "input", "link"}


class Document(HTMLParser):
    """What a page would load, its words, and whether its tags close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.words = ""
        self.data: dict[str, str] = {}
        self._reads = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [str(given[key]) for key in ("src", "srcset") if key in given]
        self.loads += [str(given["href"]) for _ in [1] if "href" in given and not str(given["href"]).startswith("#")]
        if tag not in VOID:
            self.open.append(tag)
        self._reads = str(given.get("id", "script")) if tag == "script" else tag if tag == "style" else ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._reads = ""

    def handle_data(self, data: str) -> None:
        if self._reads:
            self.data[self._reads] = self.data.get(self._reads, "") + data
        else:
            self.words += data


def test_the_page_is_whole_and_loads_nothing(run: Run) -> None:
    broken_run(run)
    document = Document(html_page([reported(run.path, "demo")]))
    assert (document.open, document.loads) == ([], [])
    assert "url(" not in document.data["style"] and "@import" not in document.data["style"]


def test_the_page_says_what_the_ledger_says(run: Run) -> None:
    broken_run(run)
    page = html_page([reported(run.path, "demo")])
    assert re.search(r"productive\|+12\.00\|+50\.0%", section(page, "time"))
    assert re.search(r"rank_sigkill, rank 1, step 7\|+in_job\|+0\.50\|+8\.00\|+2\|", section(page, "faults"))
    assert re.search(r"g1-c0-r0\|+1\.00\|+1\|+6\|+4\|+2\|", section(page, "timeline"))
    checkpoints = section(page, "checkpoints")
    assert "2 committed, the last at step 10; 1 failed" in checkpoints
    assert "[Errno 28] No space left on device &lt;fsx&gt;" in checkpoints
    assert re.search(r"written by the slowest rank\|+1\|+0\.696\|+0\.696\|+0\.696", checkpoints)
    configuration = section(page, "configuration")
    assert re.search(r"torch\|+2\.11\.0\+cu130", configuration)
    assert re.search(r"checkpoint\.interval_steps\|+10", configuration)
    assert "learning_rate" in configuration


def test_every_chart_has_its_data_its_words_and_a_table(run: Run) -> None:
    broken_run(run)
    page = html_page([reported(run.path, "demo")])
    document = Document(page)
    charts = re.findall(r'class="chart" id="([^"]+)" role="img" aria-label="([^"]+)"', page)
    assert [key for key, _ in charts] == ["timeline-chart", "time-chart", "training-chart", "faults-chart"]
    for key, words in charts:
        assert len(words) > 60
        drawing = json.loads(document.data[f"{key}-data"])
        assert drawing["data"] and drawing["layout"]
        assert re.search(rf'<section id="{key.removesuffix("-chart")}".*?<table>.*?</section>', page, re.S)


def test_rolled_back_steps_and_restarts_are_drawn_as_such(run: Run) -> None:
    broken_run(run)
    document = Document(html_page([reported(run.path, "demo")]))
    drawing = json.loads(document.data["training-chart-data"])
    traces = [trace["name"] for trace in drawing["data"]]
    assert traces == ["kept", "rolled back", "kept", "rolled back", "restart"]
    assert drawing["data"][-1]["hovertext"] == ["attempt g1-c1-r0 goes on with step 5"]
    assert [shape["x0"] for shape in drawing["layout"]["shapes"]] == [5]


def test_nothing_that_comes_from_a_log_or_a_config_becomes_markup(run: Run) -> None:
    broken_run(run, kind=HOSTILE, error=HOSTILE)
    (run.path / names.RUN_YAML).write_text(f"name: {json.dumps(HOSTILE)}\n# {HOSTILE.replace(chr(0xD800), '')}\n")
    page = html_page([reported(run.path, HOSTILE)], title=HOSTILE)
    page.encode()  # half of a character would raise
    document = Document(page)
    assert (document.open, document.loads) == ([], [])
    assert page.count("<script") == 4 + 3, "four charts' data, the roles, plotly and page.js"
    assert "window.broken" in document.words
    assert "window.broken" not in document.data["script"]


def test_the_page_does_not_grow_with_the_number_of_steps(tmp_path: Path) -> None:
    sizes = []
    for count in (4_000, 40_000):
        long_run(tmp_path / str(count), count)
        sizes.append(len(html_page([reported(tmp_path / str(count), "long")])))
    assert sizes[1] < sizes[0] + 40_000


def test_several_runs_stand_side_by_side_with_what_differs_in_their_configs(run: Run, tmp_path: Path) -> None:
    broken_run(run)
    long_run(tmp_path / "other", 50)
    (tmp_path / "other" / names.RUN_YAML).write_text(dump(load_profile("cpu-demo", ["checkpoint.interval_steps=5"])))
    page = html_page([reported(run.path, "demo"), reported(tmp_path / "other", "long")])
    comparison = section(page, "comparison")
    assert re.search(r"1  demo\|+2  long", comparison)
    assert re.search(r"steps in the final state\|+12\|+50", comparison)
    assert re.search(r"checkpoint\.interval_steps\|+10\|+5", section(page, "differences"))
    assert "training.learning_rate" not in section(page, "differences")
    assert re.findall(r'class="chart" id="([^"]+)"', page)[:3] == [
        "comparison-chart",
        "losses-chart",
        "run1-timeline-chart",
    ]
    identifiers = re.findall(r' id="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))


def test_a_run_without_config_versions_losses_and_faults_is_reported_too(tmp_path: Path) -> None:
    long_run(tmp_path, 3)
    (tmp_path / names.RUN_YAML).write_text("a: [unclosed")
    page = html_page([reported(tmp_path, "bare")])
    assert "No run.yaml" in section(page, "configuration") or "unclosed" in section(page, "configuration")
    assert "logged no versions" in section(page, "configuration")
    assert "No fault." in section(page, "faults")


def test_what_if_is_shown_only_when_the_planner_gave_one(run: Run) -> None:
    broken_run(run)
    runs = [reported(run.path, "demo")]
    assert 'id="what-if"' not in html_page(runs)
    as_is = Change("as it is", 0.9, 0.88, 0.92, 0.0, 0.0)
    spare = Change("two spares <more>", 0.94, 0.93, 0.95, 1234.0, None)
    shown = section(html_page(runs, what_if=WhatIf(as_is, (spare,), "Calibrated on this run.")), "what-if")
    assert re.search(r"two spares &lt;more&gt;\|+94\.00%\|+93\.00% to 95\.00%\|+\+1,234\|+-", shown)
    assert "Computed. Calibrated on this run." in shown and "GPU hours saved per month" in shown
    assert "As it is 90.00%; of the changes, two spares &lt;more&gt; gives most, 94.00%." in shown


def test_a_change_without_a_band_has_a_dash_and_its_bar_no_whisker(run: Run) -> None:
    broken_run(run)
    as_is = Change("as it is", 0.02, None, None, 0.0, None)
    what_if = WhatIf(as_is, (Change("a spare", 0.04, None, None, -3.4, None),), "Calibrated.", "rank")
    page = html_page([reported(run.path, "demo")], what_if=what_if)
    shown = section(page, "what-if")
    assert re.search(r"a spare\|+4\.00%\|+-\|+-3\|+-", shown) and "rank hours saved per month" in shown
    (bars,) = json.loads(Document(page).data["what-if-chart-data"])["data"]
    assert set(bars["error_x"]["array"]) == set(bars["error_x"]["arrayminus"]) == {0.0}


def test_where_the_planner_has_no_answer_the_section_is_the_reason_and_no_chart(run: Run, tmp_path: Path) -> None:
    broken_run(run)
    long_run(tmp_path / "other", 5)
    runs = [reported(run.path, "demo"), reported(tmp_path / "other", "long")]
    for some in (runs[:1], runs):
        page = html_page(some, what_if=NoWhatIf("Of demo: too <short>."))
        assert "|Not computed. Of demo: too &lt;short&gt;.|" in section(page, "what-if")
        assert 'href="#what-if"' in page and "what-if-chart" not in page


def test_a_report_needs_a_run() -> None:
    with pytest.raises(ValueError, match="needs a run"):
        html_page([])


@pytest.mark.parametrize(
    ("own", "asked", "names_"),
    [
        (["a", "b"], ["x/one", "x/two"], ["a", "b"]),
        (["demo", "demo"], ["dist/demo/clean", "dist/demo/broken"], ["clean", "broken"]),
        (["demo", "demo"], ["monday/out", "friday/out"], ["monday/out", "friday/out"]),
        (["demo", "demo"], ["out", "out"], ["out (1)", "out (2)"]),
    ],
)
def test_runs_have_distinct_names(own: list[str], asked: list[str], names_: list[str], tmp_path: Path) -> None:
    run_dirs = [tmp_path / str(index) / name for index, name in enumerate(own)]
    found = distinct_names(run_dirs, [tmp_path / path for path in asked])
    assert [name.removeprefix(f"{tmp_path}/") for name in found] == names_


def test_a_start_that_no_calendar_has_costs_the_page_nothing_but_the_date(run: Run) -> None:
    log = run.rank(0, 0, world=1)
    log.span(1, 2, "step", step=1, loss=1.0)
    anchor, *rest = log.path.read_text().splitlines()
    log.path.write_text("\n".join([json.dumps({**json.loads(anchor), "wall": 0.0, "mono": 9e10}), *rest]) + "\n")
    assert "Started at a time that no calendar has, 1 rank" in html_page([reported(run.path, "odd")])
