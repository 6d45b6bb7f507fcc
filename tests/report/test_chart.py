"""What all charts have in common: nothing in one ends its script element, and numbers carry units that suit them."""

from __future__ import annotations

import json

import plotly.graph_objects as go
import pytest

from holdfast.report.chart import Chart, label, scale_of, spoken


def test_no_text_in_a_chart_can_end_its_script_element() -> None:
    figure = go.Figure(go.Bar(x=[1], y=["</script><!--&"], hovertext=["<b>"]))
    text = Chart("key", "title", "says", figure, 100).json()
    assert not set(text) & set("<>&")
    assert json.loads(text)["data"][0]["y"] == ["</script><!--&"]


def test_a_label_is_shown_as_it_is_and_cut_where_it_is_long() -> None:
    assert label("<b>bold</b>") == "&lt;b&gt;bold&lt;/b&gt;"
    assert label("x" * 40, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("duration_s", "words"),
    [(0.0098, "9.8 ms"), (75.6, "75.6 s"), (600, "600 s"), (601, "10 min"), (86_400, "24 h"), (54 * 86_400, "54 days")],
)
def test_a_duration_is_said_in_the_unit_that_suits_it(duration_s: float, words: str) -> None:
    assert spoken(duration_s) == words
    assert scale_of(duration_s)(scale_of(duration_s).seconds) == 1
