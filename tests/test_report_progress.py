"""The page of what is being done: it follows the display, loads itself anew, and leads to the report at the end."""

import re

from bs4 import BeautifulSoup
from fake_jobs import Quiet

from suite.report.progress import WithPage
from suite.settings.progress import Active, Snapshot


def test_when_runs_train_then_the_page_has_progress_the_time_left_the_newest_curve_and_the_notes(outputs):
    page = WithPage(Quiet(), "tiny")
    page.due = float("inf")
    for step, loss in ((0, 7.0), (10, 5.0), (20, 3.0)):
        page.show(Snapshot(1, 4, left=600.0, active=(Active("a <run>", "training", step, 40, loss, 9000.0),)))
    assert not page.path.exists()                              # not more often than every ten seconds
    page.note("01_a: done in 3 s\nmore")
    shown = BeautifulSoup(page.path.read_text("utf-8"), "html.parser")
    assert shown.find("meta", attrs={"http-equiv": "refresh"})["content"] == "10"
    assert "1/4 runs, 10 min left" in shown.title.get_text() and "a <run>: step 20/40, loss 3.000" in shown.get_text()
    assert (shown.progress["max"], shown.progress["value"]) == ("4", "1")
    assert "01_a: done in 3 s" in shown.pre.get_text()
    assert shown.polyline["points"] == "0.0,0.0 320.0,80.0 640.0,160.0"
    assert shown.svg["aria-label"] == "Training loss from 7.00 at step 0 to 3.00 at step 20"
    assert not re.search(r'(src|href)="(?!index|data)', str(shown)) and shown.find("a") is None   # no report yet
    page.write(done=True)
    assert "0; url=index.html" in page.path.read_text("utf-8")
