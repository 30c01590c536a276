"""`penstock pipeline`: the tables on a terminal and as JSON, and a run from start to signal."""

import json
import re
import socket
import urllib.request
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.bucket.samples import make_samples
from penstock.cli.pipeline.table_status import list_table_lines
from penstock.spark import Lake
from penstock.spark.dependents.dependent import Dependent, catch_up
from penstock.spark.dependents.kinds.fulltext import FullText
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.lake.current import current_table as current
from penstock.spark.pipeline.state import run_state as control
from penstock.spark.pipeline.state.lake_status import DependentStatus, LakeStatus, RemovedDependent, TableSize
from penstock.spark.pipeline.state.run_progress import DependentProgress
from penstock.spark.tables.misfits import RestCount, RestReport
from tests.cli.output_checks import check_object
from tests.cli.test_processes import read_first_line, run_process
from tests.patience import PATIENCE
from tests.spark.lakes import append, checkpoint, rollback, row


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    checkpoint(lake.checkpoint, batches=2)
    append(lake, 0, [row(3, 1, b"beer", b'{"name":"K\xc3\xb6lsch"}'), row(5, 1, b"\xff", b"\xfe\n")])
    append(lake, 1, [row(3, 2, b"gone", None, "deletion"), rollback(5, 0, 1)])
    current.merge_current(lake)
    return lake


def test_current_is_shown_as_a_table(run, lake):
    code, out, err = run("pipeline", "show", lake.path, "current")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["current"]
    assert lines[1].split() == ["key", "vbucket", "seqno", "rev", "cas", "value"]
    assert lines[2].split() == ["beer", "3", "1", "1", str((3 << 48) + 1), '{"name":"Kölsch"}']
    assert lines[3].split() == ["1", "of", "1", "rows"]


def test_changelog_is_shown_as_json(run, lake):
    rows = run("pipeline", "show", lake.path, "changelog", "--json").json_lines
    assert [row["event"] for row in rows] == ["rollback", "deletion", "mutation", "mutation"]
    assert rows[0] == {
        "vbucket": 5, "vbuuid": "1001", "seqno": 0, "event": "rollback", "history": 1, "requested_seqno": 0,
    }  # fmt: skip
    assert {rows[2].get("key_base64"), rows[3].get("key_base64")} == {"/w==", None}
    assert len(run("pipeline", "show", lake.path, "changelog", "--json", "--limit", 1).lines) == 1


def test_rows_fit_a_narrow_terminal(run, lake, monkeypatch):
    from rich.console import Console

    from penstock.cli.base.text_tables import make_lake_table

    console = Console(width=72, record=True)
    console.print(make_lake_table(lake, "changelog", 10))
    lines = console.export_text().splitlines()
    assert all(len(line) <= 72 for line in lines)
    assert any(str((3 << 48) + 1) in line for line in lines)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--protocol", "tap"],
            "option protocol is 'tap', but TAP cannot resume; streaming needs upr-draft, upr or dcp",
        ),
        (["--url", "couchbase://127.0.0.1/b?protocol=tap"], "option protocol is 'tap', but TAP cannot resume"),
        (["--protocol", "xdcr"], "option protocol is 'xdcr', expected one of tap, upr-draft, upr, dcp"),
        (["--url", "couchbase://"], "connection string names no host"),
    ],
)
def test_impossible_run_is_wrong_usage(run, tmp_path, options, sentence):
    code, out, err = run("pipeline", "run", "--to", tmp_path / "lake", *options)
    assert (code, out) == (2, "")
    assert sentence in err
    assert not (tmp_path / "lake").exists()


@pytest.mark.spark
def test_run_fills_a_lake_until_it_is_stopped(on_beer, node, tmp_path):
    documents = dict(make_samples(300, 8))
    lines = "".join(json.dumps({"id": key, "doc": document}) + "\n" for key, document in documents.items())
    on_beer("load", "-", "--key", "id", "--value", "doc", stdin=lines.encode())
    lake = str(tmp_path / "lake")
    with run_process("pipeline", "run", "--to", lake, "--available-now", PENSTOCK_URL=node.url("beer")) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert out.endswith("300 rows written; the changelog has 300.\nTables: default (300 rows).\n")
    rows = on_beer("pipeline", "show", lake, "current", "--limit", 1000, "--json").json_lines
    assert {row["key"]: json.loads(row["value"]) for row in rows} == documents

    on_beer("workload", "--changes", 16, "--mix", "10:5:1", "--rate", 0)
    file = tmp_path / "pipeline.toml"
    file.write_text(f'lake = "lake"\n[source.beer]\nurl = "{node.url("beer")}"\n[metrics]\nport = 0\n[dashboard]\n')
    assert on_beer("pipeline", "plan", file, "--json").json["lag"] == 16
    with run_process("pipeline", "run", file) as process:
        seen = [read_first_line(process.stdout)]
        while "rows/s" not in (line := read_first_line(process.stdout, wait=200)) or "lag 0 " not in line:
            seen.append(line)
        assert "Starting Spark." in "".join(seen)
        address, page = seen[0].split()[-1], next(line for line in seen if line.startswith("Dashboard: ")).split()[-1]
        place, _, token = page.partition("#token=")
        assert place == address.replace("/metrics", "/_penstock")
        with urllib.request.urlopen(address, timeout=PATIENCE) as figures:
            assert 'penstock_pipeline_changelog_rows{source="beer"} 316.0' in figures.read().decode()
        asked = urllib.request.Request(f"{place}/state", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            (source,) = json.load(answer)["sources"]
        (found,) = on_beer("pipeline", "status", file, "--json").json_lines
        volatile = {"until", "rows_per_second", "bytes_per_second", "dependents"}
        assert source["status"].keys() == found.keys()
        assert {name for name in found if source["status"][name] != found[name]} <= volatile
        assert sum(each["seqnos"] for each in found["lag_ranges"]) == found["lag"]
        assert found["last_batch"]["rows"] == 16
        assert (found["state"], found["pid"], found["lag"]) == ("running", process.pid, 0)
        assert found["changelog"]["rows"] == 316
        assert found["pages"] == {"metrics": address, "dashboard": place}
        assert f"  dashboard      {place}\n" in on_beer("pipeline", "status", file).out
        assert token not in Path(lake, control.RUN_STATE).read_text()
        code, _, err = on_beer("pipeline", "reset", lake, "--yes")
        assert (code, "another run writes" in err) == (2, True)
        code, out, _ = on_beer("pipeline", "stop", file, "--timeout", 200)
        assert (code, out.splitlines()[0]) == (0, f"Stopping process {process.pid}.")
        rest, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert rest.endswith("16 rows written; the changelog has 316.\nbeer: Tables: default (296 rows).\n")
    (found,) = on_beer("pipeline", "status", lake, "--json").json_lines
    sizes = [(each["name"], each["pending"], each["size"]["rows"]) for each in found["dependents"]]
    assert (found["state"], sizes) == ("ended", [("default", 0, 296), ("current", 0, 296)])
    assert found["pages"] == {}
    assert on_beer("pipeline", "stop", lake).out == f"No run writes {lake}.\n"


@pytest.fixture
def cache():
    """The URL of a server that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def file(tmp_path, node, cache):
    """The file of a pipeline with two sources, which has never run."""
    path = tmp_path / "two.toml"
    path.write_text(
        f'lake = "two"\n[source.a]\nurl = "{node.url("beer")}"\nkey_pattern = "^beer"\ncollections = ["_default"]\n'
        f'[source.b]\nurl = "{node.url("default")}"\n[[index]]\nname = "i"\nsource = "a"\npath = "abv"\n'
        '[[fulltext]]\nname = "t"\nsource = "a"\n'
        f'[[sink]]\nkind = "bucket"\nname = "copy"\nsource = "b"\nurl = "{node.url("beer")}"\n'
        f'[[sink]]\nkind = "invalidate"\nname = "cache"\nsource = "b"\nurl = "{cache}/drop?key=tenpence"\n'
    )
    return path


def test_file_is_validated_without_and_with_its_buckets(run, file, node):
    code, out, err = run("pipeline", "validate", file)
    assert (code, err) == (0, "")
    assert out.startswith(f"{file} is valid: sources a, b; 4 dependents; lake ")
    answer = run("pipeline", "validate", file, "--connect", "--json").json
    assert answer["sources"] == ["a", "b"]
    assert [line.partition(": ")[2] for line in answer["buckets"]] == [
        "16 vbuckets, 0 seqnos", "16 vbuckets, 0 seqnos", "16 vbuckets, target of writes", "answers",
    ]  # fmt: skip
    good = file.read_text()
    for old, new, expected, sentence in (
        ('"_default"', '"ales"', 2, "the bucket has no collection '_default.ales'"),
        ('key_pattern = "^beer"', 'vbuckets = "0-16"', 2, "vbuckets has 16, but "),
        (node.url("default"), "couchbase://127.0.0.1:1/x?retrySeconds=0.1", 1, "127.0.0.1:1/x did not serve for"),
    ):
        file.write_text(good.replace(old, new))
        assert run("pipeline", "validate", file).code == 0
        code, _, err = run("pipeline", "validate", file, "--connect")
        assert (code, sentence in err) == (expected, True), err


def test_plan_shows_the_effects_of_a_run(run, file, on_beer, node, cache):
    on_beer("load", "-", "--key", "id", stdin=b'{"id": "beer-1"}\n{"id": "brewery-1"}')
    first, second = run("pipeline", "plan", file, "--json").json_lines
    assert (first["name"], first["lag"], first["filters"]) == (
        "a",
        2,
        {"collections": "_default", "key_pattern": "^beer"},
    )
    assert [(part["name"], part["kind"], part["is_new"]) for part in first["parts"]] == [
        ("changelog", "delta", True), ("tables", "table", True), ("current", "delta", True),
        ("i", "index", True), ("t", "fulltext", True),
    ]  # fmt: skip
    assert [part["kind"] for part in second["parts"]] == ["delta", "table", "delta", "bucket", "invalidate"]
    assert (first["lake"]["state"], second["lag"]) == ("new", 0)
    assert not (file.parent / "two").exists()
    assert second["parts"][-1]["place"] == f"{cache}/drop"
    text = run("pipeline", "plan", file).out
    assert "behind                   2 seqnos" in text
    assert "tenpence" not in text
    file.write_text(file.read_text().replace(node.url("beer"), "couchbase://127.0.0.1:1/beer?retrySeconds=0.1"))
    code, text, _ = run("pipeline", "plan", file)
    assert code == 1
    assert "behind                   unknown: " in text
    assert "not checked              collections and vbuckets of the bucket, and whether it is the bucket of" in text


def test_plan_names_the_pages_of_a_run(run, file):
    assert run("pipeline", "plan", file, "--json").json_lines[0]["pages"] == []
    login = file.parent / "login.json"
    login.write_text('{"username": "ada", "password": "tenpence"}')
    good = file.read_text()
    file.write_text(f'{good}\n[metrics]\nport = 9100\nhost = "0.0.0.0"\nlogin = "{login}"\n[dashboard]\n')
    pages = [["metrics", "0.0.0.0", 9100, "/metrics", "login"], ["dashboard", "127.0.0.1", 0, "/_penstock", "token"]]
    for line in run("pipeline", "plan", file, "--json").json_lines:
        assert [[*page.values()] for page in line["pages"]] == pages
    shown = run("pipeline", "plan", file).out
    assert "  metrics                  http://0.0.0.0:9100/metrics   with a login\n" in shown
    assert (
        "  dashboard                any free port of 127.0.0.1, /_penstock   with a token that the run prints\n"
        in shown
    )
    assert "tenpence" not in shown
    file.write_text(f"{good}\n[metrics]\nport = 9100\n[dashboard]\nenabled = false\n")
    shown = run("pipeline", "plan", file).out
    assert shown.endswith(
        "pages of the run\n  metrics                  http://127.0.0.1:9100/metrics   without a login\n"
    )


def test_status_is_shown_as_text(run, lake):
    code, out, err = run("pipeline", "status", lake.path)
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [f"lake  {lake.path}", "  state          never run"]
    assert "vbuckets 5" in out
    assert re.search(r"^  current  current +1 +[0-9.]+ kB +\d  up to date$", out, re.M)
    assert run("pipeline", "status", lake.path / "nothing").code == 2


def test_status_of_many_tables_fits_a_terminal():
    tables = [
        DependentStatus(
            f"orders_{number:02}", "table", 12, 10 * (number % 2), "the node is away" if number == 7 else None,
            TableSize(number * 1_234_567, 10**9, 20),
            RestReport(50_000, 50_000, tuple(
                RestCount(f"address.lines[].field_{at}", reason, "text, object", of, 100 * number + at, (f"no::{at}",))
                for at, reason, of in [*((at, "other type", "BIGINT") for at in range(5)), (5, "unknown field", None)]
            )),
        )
        for number in range(30)
    ]  # fmt: skip
    removed = (RemovedDependent("orders_03", "table"), RemovedDependent("old", "index"))
    lines = list_table_lines(LakeStatus("lake", None, "running", dependents=tuple(tables), removed=removed))
    assert max(map(len, lines)) <= 80
    assert len(lines) == 1 + 29 + 2 + 1 + 1 + 20 + 1
    assert lines[1] == "  orders_00  table           0  50,000  1 GB       12  up to date"
    assert lines[30:34] == [
        "  orders_03  table                                     no longer declared",
        "  old        index                                     no longer declared",
        "  orders_07: the node is away",
        "  does not fit                    values  found, expected       document",
    ]
    assert lines[34] == "  orders_29.address.lines[].fie…   2,904  text, object, BIGINT  no::4"
    assert lines[-1] == "  125 more; --json has all"
    assert list_table_lines(LakeStatus("lake", None, "new")) == []


def test_dependents_that_were_never_written_are_shown_as_absent(run, file, node):
    lake = Lake(file.parent / "two" / "a")
    lake.path.mkdir(parents=True)
    progress = {
        "dependents": [asdict(DependentProgress("i", "index")), asdict(DependentProgress("t", "fulltext", pending=3))]
    }
    replace(control.create_run_state(), ended=True, error="where is none", progress=progress).write(lake)
    shown = run("pipeline", "status", file).out
    assert re.search(r"^  i +index +not there yet$", shown, re.M)
    assert re.search(r"^  t +fulltext +3 rows pending$", shown, re.M)
    parts = run("pipeline", "plan", file, "--json").json_lines[0]["parts"]
    assert all(part["is_new"] for part in parts)


@pytest.mark.parametrize("others", [[], ["current"], ["changelog"]])
@pytest.mark.parametrize("name", ["nope", "*", "../lake", "curren?", ""])
def test_reset_of_an_unknown_table_removes_nothing(run, lake, name, others):
    options = [option for table in (*others, name) for option in ("--table", table)]
    code, out, err = run("pipeline", "reset", lake.path, *options, "--yes")
    assert (code, out) == (2, "")
    assert f"there is no {name!r} in {lake.path}, expected some of changelog" in err
    assert run("pipeline", "show", lake.path, "current").code == 0


def test_tables_are_compacted_vacuumed_and_removed(run, lake):
    before = run("pipeline", "show", lake.path, "current", "--json").out
    report = run("pipeline", "compact", lake.path, "--json").json
    assert report["changelog"]["files_after"] < report["changelog"]["files_before"]
    code, out, _ = run("pipeline", "vacuum", lake.path, "--keep-hours", 0)
    assert (code, "files on disk" in out) == (0, True)
    assert run("pipeline", "show", lake.path, "current", "--json").out == before
    code, out, err = run("pipeline", "reset", lake.path, "--table", "current")
    assert (code, out, "nothing was removed; add --yes to remove the files" in err) == (
        2, f"would be removed: {lake.current_table.path}\n", True,
    )  # fmt: skip
    assert run("pipeline", "reset", lake.path, "--table", "current", "--yes").code == 0
    assert run("pipeline", "show", lake.path, "current", "--json").out == before
    assert run("pipeline", "stop", lake.path, "--json").json["was_running"] is False
    assert run("pipeline", "reset", lake.path, "--yes", "--json").json_lines[0]["removed"]
    assert run("pipeline", "show", lake.path, "current").code == 2


@pytest.fixture
def indexed(tmp_path):
    """A lake with an index of each type. The indexes have read the first of its two batches."""
    lake = Lake(tmp_path / "indexed")
    checkpoint(lake.checkpoint, batches=2)
    named: dict[str, Any] = {"collection_id": 9, "scope": "shop", "collection": "hats"}
    indexes: list[Dependent] = [
        SecondaryIndex(lake, "by_abv", "abv", "double"),
        SecondaryIndex(lake, "by_time", "at", "timestamp"),
        SecondaryIndex(lake, "by_sale", "sold", "boolean"),
        SecondaryIndex(lake, "by_price", "price", "decimal(38, 2)"),
        SecondaryIndex(lake, "by_day", "day", "date"),
        FullText(lake, "words", ["name"]),
    ]
    append(lake, 0, [
        row(1, 1, b"pale", b'{"name": "Pale ale, citrus", "abv": 5.1, "at": "2026-01-02T00:00:00Z", "sold": true,'
            b' "price": 90071992547409931.10, "day": "2026-01-02"}'),
        row(2, 1, b"stout", b'{"name": "Oat stout", "abv": 6.3, "at": "2026-02-02T00:00:00Z", "sold": false}'),
        row(3, 1, b"cold", b'{"name": "Ice", "abv": -1}'),
    ])  # fmt: skip
    for index in indexes:
        catch_up(index, lake)
    append(lake, 1, [row(1, 2, b"hat", b'{"abv": 5.5}', **named), row(2, 2, b"stout", None, "deletion")])
    return lake


def test_documents_are_found_by_an_index(run, indexed):
    def keys(*arguments):
        return [found["key"] for found in run("pipeline", "find", indexed.path, "--json", *arguments).json_lines]

    assert keys("by_abv", 5.1) == ["pale"]
    assert keys("by_abv", 5, "--to", 7) == ["pale", "hat"]  # also the newest document, and no longer the deleted stout
    assert keys("by_abv", "--limit", 1, "--to", 7, "--", -2) == ["cold"]
    assert keys("by_time", "2026-01-01T00:00:00Z", "--to", "2026-03-01T00:00:00Z") == ["pale"]
    assert keys("by_sale", "true") == ["pale"]
    lines = run("pipeline", "find", indexed.path, "by_abv", 5, "--to", 7, "--limit", 2).lines
    assert [line.split() for line in lines] == [
        ["by_abv"],
        ["value", "key", "vbucket", "seqno", "collection"],
        ["5.1", "pale", "1", "1", "_default._default"],
        ["5.5", "hat", "1", "2", "shop.hats"],
        ["2", "found;", "limited", "by", "--limit"],
    ]
    [found] = run("pipeline", "find", indexed.path, "by_price", "90071992547409931.1", "--json").json_lines
    assert (found["key"], found["value"]) == ("pale", "90071992547409931.10")  # as a float it would end with 36
    assert not keys("by_price", "90071992547409931.11")
    assert keys("by_price", "--to", "90071992547409931.10", "--", "-1") == ["pale"]
    [found] = run("pipeline", "find", indexed.path, "by_day", "2026-01-01", "--to", "2026-01-02", "--json").json_lines
    assert found["value"] == "2026-01-02"
    assert "2026-01-02T00:00:00+00:00" in run("pipeline", "find", indexed.path, "by_time", "2026-01-02").out


def test_documents_are_found_by_words(run, indexed):
    [found] = run("pipeline", "search", indexed.path, "words", "citrus NOT stout", "--json").json_lines
    assert (found["key"], found["snippet"], found["score"] > 0) == ("pale", "Pale ale, [citrus]", True)
    lines = run("pipeline", "search", indexed.path, "words", "ale OR ice").lines
    assert lines[1].split() == ["score", "key", "snippet"]
    assert {line.split(maxsplit=2)[2].strip() for line in lines[2:4]} == {"Pale [ale], citrus", "[Ice]"}
    assert lines[4].strip() == "2 found"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["find", "by_abv", "null"], "the lower bound is 'null'; expected a double"),
        (["find", "by_abv", "1", "--to", "strong"], "the upper bound is 'strong'; expected a double"),
        (["find", "by_price", "0.125"], "the lower bound is 0.125; expected a decimal(38, 2)"),
        (["find", "words", "1"], "there is no index 'words' in "),
        (["find", "../x", "1"], "expected by_abv or by_day or by_price or by_sale or by_time"),
        (["search", "by_abv", "x"], "there is no full-text index 'by_abv' in "),
        (["search", "words", '"x'], "unterminated string; expected words"),
    ],
)
def test_invalid_queries_of_an_index_are_refused(run, indexed, arguments, sentence):
    code, out, err = run("pipeline", arguments[0], indexed.path, *arguments[1:])
    assert (code, out) == (2, "")
    assert sentence in err


def test_missing_index_is_wrong_usage(run, lake, file):
    assert "there is no index 'i' in" in (err := run("pipeline", "find", lake.path, "i", "1").err)
    assert "expected an index that a pipeline has written" in err
    (file.parent / "two" / "a").mkdir(parents=True)
    assert "--source is not given, expected a, b" in run("pipeline", "search", file, "other", "x").err
    assert (
        f"there is no full-text index 't' in {file.parent / 'two' / 'a'}"
        in run("pipeline", "search", file, "t", "x").err
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run"], "expected either a pipeline's FILE or --to LAKE"),
        (["run", "p.toml", "--to", "lake"], "expected either a pipeline's FILE or --to LAKE"),
        (["run", "p.toml", "--trigger", "5"], "--trigger cannot be combined with FILE: set it in the file"),
        (["run", "p.toml"], "p.toml: No such file or directory"),
        (["validate", "p.toml"], "p.toml: No such file or directory"),
        (["stop", "nothing"], "there is no lake at "),
    ],
)
def test_invalid_arguments_are_wrong_usage(run, arguments, sentence):
    code, out, err = run("pipeline", *arguments)
    assert (code, out) == (2, "")
    assert sentence in err


def test_option_wins_over_the_dashboard_of_the_file(run, tmp_path):
    file = tmp_path / "pipeline.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [each.getsockname()[1] for each in (taken, other)]
        file.write_text(f'lake = "lake"\n[source.beer]\n[dashboard]\nport = {ports[0]}\n')
        for arguments, port in (((), ports[0]), (("--dashboard", ports[1]), ports[1])):
            code, _, err = run("pipeline", "run", file, *arguments)
            assert (code, f"cannot serve the dashboard on port {port} of 127.0.0.1" in err) == (2, True), err


def test_metrics_need_a_free_port(run, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = run("pipeline", "run", "--to", tmp_path / "lake", "--metrics", port)
    assert (code, out) == (2, "")
    assert f"cannot serve metrics on port {port} of 127.0.0.1: Address already in use" in err


def test_progress_is_lines_or_json_or_stays_in_place(capsys):
    from penstock.cli.pipeline.progress_display import ProgressDisplay
    from penstock.spark.pipeline.state.run_progress import SourceProgress

    table = DependentProgress("current", "current", version=3, pending=1_000)
    cache = DependentProgress("cache", "invalidate", error="it is away", failures=2)
    one = SourceProgress(
        "beer", rows=5_000, lag=12, batches=2, rows_per_second=1_234.5, rollbacks=4, dependents=(table, cache)
    )
    for display in (
        ProgressDisplay(as_json=False, on_terminal=False),
        ProgressDisplay(as_json=True, on_terminal=False),
        ProgressDisplay(as_json=False, on_terminal=True, is_quiet=True),
    ):
        with display:
            display.print_line("Starting.")
            for _ in range(3):
                display.show(one)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert " ".join(lines[1].split()) == (
        "beer 5,000 rows written 1,234 rows/s lag 12 seqnos current 1,000 pending cache it is away"
        " 4 vbuckets rolled back"
    )
    found = json.loads(lines[2])
    check_object("pipeline run", found)
    assert (found["source"], found["merged"], found["dependents"]["cache"]["failures"]) == ("beer", 3, 2)
    with ProgressDisplay(as_json=False, on_terminal=True) as display:
        display.show(one)
    shown = capsys.readouterr().out
    assert "5,000" in shown
    assert "it is away" in shown


@pytest.mark.parametrize(
    ("octets", "text"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2_340_000, "2.34 MB"), (5e15, "5e+03 TB")]
)
def test_sizes_are_shown_with_units(octets, text):
    from penstock.cli.pipeline.progress_display import format_size

    assert format_size(octets) == text
