"""The dashboard in a real browser: its numbers, updates, drawings, rights to act, keyboard and accessibility."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from penstock.client.dashboard.stat_rows import list_timings
from penstock.client.login.credentials import Credentials
from penstock.node import Node
from penstock.wire.codec.statuses import Status
from tests.cli.test_cluster_commands import name, write_file
from tests.client.dashboards import run_dashboard, run_release
from tests.compat.browser import expect_accessible, open_browser, open_page
from tests.compat.dashboard_scene import dashboard_url, lose_changes, open_consumer, read_history, resume
from tests.compat.installed import find_browser, require_package
from tests.node.serve_process import run_processes
from tests.node.wire_client import connected
from tests.patience import PATIENCE

require_package("playwright")
find_browser()

pytestmark = [pytest.mark.process, pytest.mark.long]

VOLATILE = {"pid", "time", "uptime", "rusage_user", "rusage_system", "curr_connections", "total_connections"}
"""Statistics that change while nothing happens, or with the connection that asks for them."""

STATS = (
    "() => Object.fromEntries([...document.querySelectorAll('[data-stat]')].map(e => [e.dataset.stat, e.textContent]))"
)
TEXT = "selector => document.querySelector(selector)?.textContent ?? ''"
SHOWS = "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=64) as node:
        yield node


def read_stats(node, *groups):
    command = [sys.executable, "-m", "penstock", "stats", *groups, "--json", "--url", node.url("beer")]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=PATIENCE).stdout)


def write_documents(client):
    for number in range(90):
        assert client.set(b"%d" % number, b"{}", vbucket=number % 7).specific == Status.SUCCESS


def expect_numbers_of_stats(shown, node):
    """Compare a page with `penstock stats --json` after `write_documents`, and show the detail of vbucket 3."""
    shown.page.click("#stats-box summary")
    shown.wait_for(SHOWS, ["[data-stat=cmd_set]", "90"])
    found, known = shown.page.evaluate(STATS), read_stats(node)
    assert found.keys() == known.keys()
    assert {name for name in known if found[name] != known[name]} <= VOLATILE
    assert shown.page.evaluate(TEXT, "[data-total=curr_items]") == "90"
    (row,) = (row for row in list_timings([read_stats(node, "latencies")]) or () if row.name == "set")
    shown.wait_for(SHOWS, ["#commands tbody tr:first-child td:nth-child(2)", str(row.count)])
    shown.page.focus('[data-vbucket="3"]')
    shown.wait_for("() => document.getElementById('detail').dataset.vbucket === '3'")


def test_numbers_are_those_of_stats(browser, node):
    with connected(node, "beer") as client, open_page(browser, dashboard_url(node)) as shown:
        write_documents(client)
        expect_numbers_of_stats(shown, node)
        names, values = (shown.page.locator(f".detail {one}").all_text_contents() for one in ("dt", "dd"))
        facts = dict(zip(names, values, strict=True))
        seqnos = client.stats("vbucket-seqno 3")
        assert facts["High seqno"] == seqnos["vb_3:high_seqno"] == "13"
        assert int(facts["Vbuuid"], 16) == int(seqnos["vb_3:uuid"])
        # Under load: a number of the page lies between those before and after it.
        for number in range(200):
            client.set(b"%d" % number, b"{}")
            if number % 50 == 49:
                before = int(client.stats()["cmd_set"])
                shown.wait_for(
                    "least => Number(document.querySelector('[data-stat=cmd_set]').textContent) >= least", before
                )
                assert int(shown.page.evaluate(STATS)["cmd_set"]) <= int(client.stats()["cmd_set"])
        assert shown.complaints == []
        assert {url.split("/")[2] for url in shown.requests} == {f"127.0.0.1:{node.http_port}"}


def test_rollback_is_drawn(browser, node):
    with ExitStack() as stack:
        client, consumer = (stack.enter_context(connected(node, "beer")) for _ in range(2))
        shown = stack.enter_context(open_page(browser, dashboard_url(node)))
        for number in range(20):
            client.set(b"%d" % number, b"{}", vbucket=5)
        high, vbuuid = read_history(node, "beer", 5)
        lose_changes(node, "beer", 5, 12)
        assert resume(consumer, "warehouse", 5, high, vbuuid) == Status.ROLLBACK
        shown.wait_for(SHOWS, [".story", "8 changes are void"])
        picture = shown.page.locator("#rollbacks svg")
        assert "warehouse had vbucket 5 up to seqno 20. Both histories agree up to 12" in picture.get_attribute(
            "aria-label"
        )
        texts = picture.locator("text").all_text_contents()
        assert {f"0x{vbuuid:012x}", f"0x{read_history(node, 'beer', 5)[1]:012x}", "warehouse at 20", "common 12"} <= {
            *texts
        }
        # The stream then stands on the new branch, in the details of its vbucket.
        open_vbucket = '[data-vbucket="5"]'
        consumer.stream(5, start=12, vbuuid=vbuuid)
        shown.page.click(open_vbucket)
        shown.wait_for(SHOWS, ["#detail svg", "warehouse"])
        shown.wait_for(SHOWS, ["#detail .changes", "mutation"])


def test_administrator_ends_a_stream_after_a_question(browser, node):
    with connected(node, "beer") as consumer, open_page(browser, dashboard_url(node)) as shown:
        open_consumer(consumer, "indexer", range(64), window=1000)
        shown.wait_for(SHOWS, ["#streams", "indexer"])
        row = shown.page.locator("#streams tbody tr")
        assert {"in step", "64"} <= {*row.locator("td").all_text_contents()}
        row.get_by_role("button").click()
        shown.page.click("#confirm-no")
        assert len(node.streams("beer")) == 1
        row.get_by_role("button").click()
        shown.page.click("#confirm-yes")
        shown.wait_for(SHOWS, ["#streams", "No consumer is connected"])
        assert node.streams("beer") == []


@pytest.mark.parametrize("is_beside", [False, True], ids=["node", "beside"])
def test_tail_shows_decoded_changes_that_match(browser, node, is_beside):
    with ExitStack() as stack:
        client = stack.enter_context(connected(node, "beer"))
        url = stack.enter_context(run_dashboard(node.url("beer"))) if is_beside else dashboard_url(node)
        shown = stack.enter_context(open_page(browser, url))
        shown.page.fill("[name=filter_value]", "abv >")
        shown.page.click(".tail-form [type=submit]")
        shown.wait_for(SHOWS, ["#tail-state", "The filter is not accepted"])
        shown.page.fill("[name=filter_value]", "abv > 5")
        shown.page.fill("[name=filter_key]", "a")
        with shown.page.expect_response("**/changes"):
            shown.page.click(".tail-form [type=submit]")
        for key, value in ((b"lager", b'{"abv":4}'), (b"pale ale", b'{"abv":6}'), (b"stout", b'{"abv":7}')):
            client.set(key, value, vbucket=9)
        client.set(b"bytes", b"\xff\x00", vbucket=8)
        shown.wait_for(SHOWS, ["#tail .changes", "pale ale"])
        assert shown.page.locator("#tail .changes li").count() == 1
        shown.page.click("#tail .changes summary")
        assert shown.page.locator("#tail .changes pre").text_content() == '{\n  "abv": 6\n}'
        shown.page.click('[data-vbucket="8"]')
        shown.wait_for(SHOWS, ["#detail .changes", "bytes"])
        shown.page.click("#detail .changes summary")
        assert "ff 00" in shown.page.locator("#detail .changes pre").text_content()


def test_grid_is_walked_with_the_keyboard(browser, node):
    with open_page(browser, dashboard_url(node)) as shown:
        shown.page.focus('[data-vbucket="0"]')
        walk = {
            "ArrowRight": 1,
            "ArrowDown": 17,
            "End": 31,
            "ArrowRight ": 32,
            "ArrowLeft": 31,
            "ArrowUp": 15,
            "Home": 0,
        }
        walk |= {"Control+End": 63, "ArrowDown ": 63, "Control+Home": 0, "PageDown": 63}
        for key, place in walk.items():
            shown.page.keyboard.press(key.strip())
            assert shown.page.evaluate("() => document.activeElement.dataset.vbucket") == str(place), key
        assert shown.page.locator('[data-vbucket][tabindex="0"]').count() == 1
        shown.page.keyboard.press("Enter")
        assert shown.page.locator('[aria-selected="true"]').get_attribute("data-vbucket") == "63"
        shown.wait_for(SHOWS, ["#detail", "The vbucket has no changes."])
        shown.page.keyboard.press("Escape")
        assert shown.page.locator('[aria-selected="true"]').count() == 0
        shown.page.keyboard.press("Tab")
        assert shown.page.evaluate("() => document.activeElement.dataset.vbucket") is None


@pytest.mark.parametrize("look", [{}, {"dark": True}, {"phone": True}, {"phone": True, "dark": True}], ids=str)
def test_no_violation_of_accessibility(browser, node, look):
    with ExitStack() as stack:
        client, consumer, other = (stack.enter_context(connected(node, "beer")) for _ in range(3))
        client.set(b"k", b"{}", vbucket=5)
        high, vbuuid = read_history(node, "beer", 5)
        lose_changes(node, "beer", 5, 0)
        resume(consumer, "warehouse", 5, high, vbuuid)
        open_consumer(other, "indexer", range(64), window=1000)
        client.set(b"k", b"{}", vbucket=5)
        shown = stack.enter_context(open_page(browser, dashboard_url(node), **look))
        shown.page.click('[data-vbucket="5"]')
        shown.page.click("#stats-box summary")
        shown.wait_for(SHOWS, ["#rollbacks", "warehouse"])
        shown.wait_for(SHOWS, ["#detail .changes", "mutation"])
        expect_accessible(shown)


def test_lost_node_is_shown_as_lost_and_comes_back(browser, tmp_path):
    with ExitStack() as stack:
        (node,) = stack.enter_context(run_processes(tmp_path, 1))
        shown = stack.enter_context(open_page(browser, f"http://127.0.0.1:{node.ports[1]}/_penstock"))
        shown.wait_for(SHOWS, ["#link", "Live"])
        assert shown.page.is_hidden("#chains-card")  # a node does not ask the others
        node.kill()
        shown.wait_for(SHOWS, ["#link", "Lost"])
        assert "does not answer" in shown.page.evaluate(TEXT, "#problem")
        node.start()
        shown.wait_for(SHOWS, ["#link", "Live"])
        assert shown.page.is_hidden("#problem")


@contextmanager
def run_dashboard_process(*arguments):
    """Run `penstock dashboard`, and yield the printed object."""
    command = [sys.executable, "-m", "penstock", "dashboard", "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0


def run_cluster(*arguments):
    """Run `penstock cluster`, and return its output."""
    command = [sys.executable, "-m", "penstock", "cluster", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False).stdout


def read_table(shown):
    """Return the texts of the table of owners and replicas without the ages, which change."""
    rows = shown.page.locator("#chains tbody tr").all()
    return [[text for at, text in enumerate(row.locator("td").all_text_contents()) if at != 4] for row in rows]


def test_table_of_owners_and_replicas_is_that_of_the_cluster(browser, tmp_path):
    with ExitStack() as stack:
        processes = stack.enter_context(run_processes(tmp_path, 2))
        file = write_file(tmp_path / "lab.toml", processes)
        run_cluster("apply", file)
        url = f"couchbase://{name(processes[0])}/beer?retrySeconds=0.001"
        shown = stack.enter_context(open_page(browser, stack.enter_context(run_dashboard(url))))
        assert not [each for each in shown.requests if each.endswith("/chains")]
        shown.page.click("#chains-box summary")
        shown.wait_for(SHOWS, ["#chains-count", "8 of 8 vbuckets ok"])
        expected = [json.loads(line) for line in run_cluster("status", file, "--json").splitlines()]
        assert read_table(shown) == [
            [str(row["vbucket"]), row["owner"], *row["replicas"], "0", "ok"] for row in expected
        ]
        assert "?" not in shown.page.evaluate(TEXT, "#chains tbody")
        expect_accessible(shown)
        processes[1].kill()
        shown.wait_for(SHOWS, ["#chains-count", "0 of 8 vbuckets ok"])
        faults = {states[-1] for states in read_table(shown)}
        assert faults == {"owner does not answer", f"replica at {name(processes[1])} does not answer"}
        processes[1].start()
        shown.wait_for(SHOWS, ["#chains tbody", f"no stream has reached the replica at {name(processes[1])}"])


def test_page_beside_a_server_has_its_numbers(browser, node):
    with ExitStack() as stack:
        client, consumer = (stack.enter_context(connected(node, "beer")) for _ in range(2))
        write_documents(client)
        open_consumer(consumer, "indexer", range(64), window=1000)
        where = stack.enter_context(run_dashboard_process("--url", node.url("beer")))
        shown = stack.enter_context(open_page(browser, where["dashboard"]))
        assert "token" not in shown.page.url
        expect_numbers_of_stats(shown, node)
        shown.wait_for(SHOWS, ["#detail", "indexer"])
        assert shown.page.locator("#streams button").filter(visible=True).count() == 0
        shown.page.reload()
        shown.wait_for("() => document.body.dataset.at")
        client.set(b"later", b"{}", vbucket=3)
        shown.wait_for(SHOWS, ["[data-total=curr_items]", "91"])
        assert shown.complaints == []
        assert {url.split("/")[2] for url in shown.requests} == {f"127.0.0.1:{where['port']}"}


@pytest.mark.parametrize("look", [{}, {"phone": True, "dark": True}], ids=str)
def test_unknown_values_are_accessible_as_such(browser, look):
    with ExitStack() as stack:
        server = stack.enter_context(run_release("Couchbase 3.0.0"))
        login = Credentials(server.user, server.password)
        shown = stack.enter_context(open_page(browser, stack.enter_context(run_dashboard(server.url(), login)), **look))
        assert shown.page.evaluate(TEXT, "[data-total=curr_items]") == "unknown"
        shown.page.check("[name=mode][value=lag]")
        shown.page.focus('[data-vbucket="1"]')
        shown.wait_for("() => document.getElementById('detail').dataset.vbucket === '1'")
        names, values = (shown.page.locator(f".detail {one}").all_text_contents() for one in ("dt", "dd"))
        facts = dict(zip(names, values, strict=True))
        assert (facts["High seqno"], facts["Documents"], facts["Snapshot"]) == ("15", "unknown", "unknown")
        expect_accessible(shown)
