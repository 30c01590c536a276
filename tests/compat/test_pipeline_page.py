"""The page of a pipeline's run in a real browser: its numbers, its events, and accessibility."""

from __future__ import annotations

import pytest

from tests.compat.browser import expect_accessible, open_browser, open_page
from tests.compat.installed import find_browser, require_package
from tests.spark.pipeline_pages import run_page, write_lake

require_package("playwright")
find_browser()

pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_lake(tmp_path_factory.mktemp("pipeline"))


@pytest.mark.parametrize("look", [{}, {"dark": True}, {"phone": True}, {"phone": True, "dark": True}], ids=str)
def test_page_shows_the_run(browser, file, look):
    with run_page(file) as served, open_page(browser, served.urls["dashboard"], **look) as shown:
        facts = {
            name: shown.page.locator(f"[data-fact={name}]").text_content()
            for name in ("lag", "changelog_rows", "last_batch", "missing", "state")
        }
        assert facts == {"lag": "70", "changelog_rows": "5", "last_batch": "250 ms", "missing": "3", "state": "killed"}
        rows = {
            row[0]: row for row in map(list_cells, shown.page.locator(".source table").first.locator("tbody tr").all())
        }
        assert rows["current"][-1] == "waits for the changelog"
        assert (rows["by_abv"][-1], rows["copy"][-1]) == ("applies 2 rows", "the node is away")
        misfits = shown.page.locator("[aria-labelledby^=values-that-do-not-fit] tbody tr")
        assert list(map(list_cells, misfits.all())) == [
            ["drinks", "n", "other type", "text", "BIGINT", "1", r"\xffporter"]
        ]
        assert shown.page.locator(".ranges dt").all_text_contents() == ["0-63", "64-127"]
        assert "vbucket 5" in shown.page.locator(".events").text_content()
        assert shown.page.locator(".timeline .mark").count() == 1
        assert list_cells(shown.page.locator("table").last.locator("tbody tr"))[:2] == ["copy", "3"]
        expect_accessible(shown)


def list_cells(row):
    return row.locator("td").all_text_contents()
