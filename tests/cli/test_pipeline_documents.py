"""The page of a pipeline's run: its numbers against those of the status, its port and its login."""

import base64
import json
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from penstock.client.login.credentials import Credentials
from penstock.client.signals.web_listener import WebListener
from penstock.errors import UsageError
from penstock.spark.pipeline.state.lag import list_lag_ranges
from tests.patience import PATIENCE
from tests.spark.pipeline_pages import run_page, write_lake

LOGIN = Credentials("ops", "secret")


def ask(url, path="", authorization=""):
    """Return status and body."""
    headers = {"Authorization": authorization} if authorization else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, headers=headers), timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def basic(login):
    return "Basic " + base64.b64encode(login.encode()).decode()


def test_page_has_the_numbers_of_the_status(run, tmp_path):
    file = write_lake(tmp_path)
    (status,) = run("pipeline", "status", file, "--json").json_lines
    with run_page(file) as served:
        url, _, token = served.urls["dashboard"].partition("#token=")
        assert ask(url, "/state")[0] == ask(url, "/state", "Bearer x")[0] == 401
        assert b"pipeline.js" in ask(url)[1]
        code, body = ask(url, "/state", f"Bearer {token}")
    (source,) = json.loads(body)["sources"]
    assert (code, source["status"]) == (200, status)
    assert (status["lag"], status["changelog"]["rows"], status["last_batch"]["seconds"]) == (70, 5, 0.25)
    (rest,) = (each["rest"] for each in status["dependents"] if each["name"] == "drinks")
    assert rest["misfits"][0] == {
        "field": "n", "reason": "other type", "found": "text", "expected": "BIGINT", "values": 1,
        "keys": [r"\xffporter"],
    }  # fmt: skip
    assert [each["seqnos"] for each in status["lag_ranges"]] == [60, 10]
    assert [point[1:] for point in source["points"]] == [[5, 70, 0.25, 2]]
    assert [each["vbuckets"] for each in source["rollbacks"]] == [[5]]
    assert source["dead_letters"] == [{"name": "copy", "path": str(tmp_path / "letters"), "rows": 3}]


def test_metrics_count_values_that_do_not_fit(tmp_path):
    with run_page(write_lake(tmp_path), WebListener(0)) as served:
        text = ask(served.urls["metrics"])[1].decode()
    names = 'name="drinks",source="beer"'
    assert f"penstock_pipeline_table_rest_rows{{{names}}} 1.0\n" in text
    values = [line for line in text.splitlines() if line.startswith("penstock_pipeline_table_rest_values{")]
    assert values == [
        f'penstock_pipeline_table_rest_values{{field="n",{names[:13]},reason="other type",{names[14:]}}} 1.0',
        f'penstock_pipeline_table_rest_values{{field="new",{names[:13]},reason="unknown field",{names[14:]}}} 1.0',
    ]


def test_metrics_and_page_share_a_port_and_keep_their_logins(tmp_path):
    file = write_lake(tmp_path)
    page = WebListener(0, login=LOGIN, purpose="the dashboard")
    with run_page(file, WebListener(0), page) as served:
        metrics, dashboard = served.urls["metrics"], served.urls["dashboard"]
        assert urlsplit(metrics).netloc == urlsplit(dashboard).netloc
        assert ask(metrics)[0] == 200
        for path in ("", "/state", "/assets/pipeline.js"):
            assert ask(dashboard, path)[0] == ask(dashboard, path, basic("ops:x"))[0] == 401
            assert ask(dashboard, path, basic("ops:secret"))[0] == 200
    with run_page(file, WebListener(0, "localhost"), page) as served:
        assert len({urlsplit(url).port for url in served.urls.values()}) == 2
    with pytest.raises(UsageError, match="other machines reach the dashboard on"):
        WebListener(0, "0.0.0.0", purpose="the dashboard")


def test_ranges_have_the_lag_of_their_vbuckets():
    highs = {vbucket: vbucket for vbucket in range(64) if vbucket != 3}
    found = list_lag_ranges(None, highs, 64)
    assert (len(found), found[0].seqnos, found[-1].last, sum(each.seqnos for each in found)) == (
        16, 0 + 1 + 2, 63, sum(highs),
    )  # fmt: skip
    assert [(each.first, each.last, each.seqnos) for each in list_lag_ranges(None, highs, 64, [5])] == [(4, 7, 5)]
    assert list_lag_ranges(None, {0: 4, 1: 5}, 2)[1].seqnos == 5
