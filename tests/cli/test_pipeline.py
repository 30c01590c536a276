"""`penstock pipeline`: the tables on a terminal and as JSON, and a run from start to signal."""

import json
import signal

import pytest

from penstock.cli.samples import sample_documents
from penstock.spark.lake import Lake, current
from tests.cli.test_processes import ended, first_line, started
from tests.spark.lakes import append, checkpoint, rollback, row


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    checkpoint(lake.checkpoint, batches=2)
    append(lake, 0, [row(3, 1, b"beer", b'{"name":"K\xc3\xb6lsch"}'), row(5, 1, b"\xff", b"\xfe\n")])
    append(lake, 1, [row(3, 2, b"gone", None, "deletion"), rollback(5, 0, 1)])
    current.catch_up(lake)
    return lake


def test_current_as_a_table(run, lake):
    code, out, err = run("pipeline", "show", lake.path, "current")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["current"]
    assert lines[1].split() == ["key", "vbucket", "seqno", "rev", "cas", "value"]
    assert lines[2].split() == ["beer", "3", "1", "1", str((3 << 48) + 1), '{"name":"Kölsch"}']
    assert lines[3].split() == ["1", "of", "1", "rows"]


def test_the_changelog_as_json(run, lake):
    rows = run("pipeline", "show", lake.path, "changelog", "--json").json_lines
    assert [row["event"] for row in rows] == ["rollback", "deletion", "mutation", "mutation"]
    assert rows[0] == {
        "vbucket": 5, "vbuuid": "1001", "seqno": 0, "event": "rollback", "history": 1, "requested_seqno": 0,
    }  # fmt: skip
    assert {rows[2].get("key_base64"), rows[3].get("key_base64")} == {"/w==", None}
    assert len(run("pipeline", "show", lake.path, "changelog", "--json", "--limit", 1).lines) == 1


def test_rows_fit_a_narrow_terminal(run, lake, monkeypatch):
    from rich.console import Console

    from penstock.cli.tables import table_of

    console = Console(width=72, record=True)
    console.print(table_of(lake, "changelog", 10))
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
def test_a_run_that_cannot_be_is_wrong_usage(run, tmp_path, options, sentence):
    code, out, err = run("pipeline", "run", "--to", tmp_path / "lake", *options)
    assert (code, out) == (2, "")
    assert sentence in err
    assert not (tmp_path / "lake").exists()


@pytest.mark.spark
def test_a_bucket_flows_into_a_lake_until_it_is_stopped(on_beer, node, tmp_path):
    documents = dict(sample_documents(300, 8))
    lines = "".join(json.dumps({"id": key, "doc": document}) + "\n" for key, document in documents.items())
    on_beer("load", "-", "--key", "id", "--value", "doc", stdin=lines.encode())
    lake = str(tmp_path / "lake")
    with started("pipeline", "run", "--to", lake, "--available-now", PENSTOCK_URL=node.url("beer")) as process:
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert out.endswith("300 rows written; the changelog has 300.\n")
    rows = on_beer("pipeline", "show", lake, "current", "--limit", 1000, "--json").json_lines
    assert {row["key"]: json.loads(row["value"]) for row in rows} == documents

    on_beer("workload", "--changes", 16, "--mix", "10:5:1", "--rate", 0)
    with started("pipeline", "run", "--to", lake, "--json", PENSTOCK_URL=node.url("beer")) as process:
        while json.loads(first_line(process.stdout, wait=200))["changelog_rows"] < 316:
            pass
        code, _, err = ended(process, signal.SIGTERM)
    assert code == 130
    assert "Stopping" in err
    assert "Traceback" not in err
    assert len(on_beer("pipeline", "show", lake, "current", "--limit", 1000, "--json").lines) == 296
