"""`penstock dump` and `penstock restore`: files, summaries and exit codes."""

import asyncio
import json

from rich.console import Console

from penstock.cli.base import work_display
from penstock.client.dumps.bucket_dump import TransferProgress


def test_dump_and_restore_print_summaries(run, source, target, tmp_path):
    path, url = tmp_path / "beer.jsonl", source.url("beer")
    dumped = run("dump", path, "--url", url)
    assert (dumped.code, dumped.err) == (0, "")
    assert dumped.out.startswith(f"{path}: 100 changes, {path.stat().st_size} bytes, ")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["key"] for line in lines} == {str(number) for number in range(100)}
    refused = run("dump", path, "--url", url)
    assert (refused.code, "exists, expected a new file" in refused.err) == (2, True)
    without = ("--filter-key-exclude", "^4")
    replaced = run("dump", path, "--url", url, "--replace", "--json", "--filter-key", "^[14]", *without).json
    expected = {"file": str(path), "rows": 11, "bytes": path.stat().st_size, "continued": False}
    expected["unreadable"] = {"count": 0, "examples": []}
    assert replaced.pop("seconds") >= 0
    assert replaced == expected

    restored = run("restore", path, "--url", target.url("beer"))
    assert restored.out.startswith(
        "11 changes: 11 written, 0 already there or newer, 0 deletions of missing documents,"
    )
    again = run("restore", path, "--url", target.url("beer"), "--json").json
    assert (again["rows"], again["written"], again["kept"], again["refusals"]) == (11, 0, 11, [])
    forced = run("restore", path, "--url", target.url("beer"), "--json", "--force").json
    assert (forced["written"], forced["kept"]) == (11, 0)
    quiet = run("restore", path, "--url", target.url("beer"), "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_format_is_named_where_the_suffix_does_not(run, source, target, tmp_path):
    path = tmp_path / "beer.dump"
    refused = run("dump", path, "--url", source.url("beer"))
    assert (refused.code, "expected one of .jsonl" in refused.err) == (2, True)
    assert run("dump", path, "--url", source.url("beer"), "--format", "parquet", "--quiet").code == 0
    assert path.read_bytes().startswith(b"PAR1")
    restored = run("restore", path, "--url", target.url("beer"), "--format", "parquet", "--json")
    assert restored.json["written"] == 100


def test_refused_changes_are_reported(run, target, tmp_path):
    path = tmp_path / "beer.jsonl"
    path.write_text(
        '{"key": "a", "value": "1", "cas": "5", "rev_seqno": 1}\n{"key": "b", "cas": "5", "rev_seqno": 1}\n'
    )
    restored = run("restore", path, "--url", target.url("beer"))
    assert (restored.code, "1 written" in restored.out, "1 refused" in restored.out) == (1, True, True)
    assert restored.err == "penstock: refused: key b'b': no value\n"


def watch(capsys, progress):
    async def main():
        async with work_display.show_transfer("beer.parquet", lambda: progress, is_quiet=False):
            await asyncio.sleep(0.05)

    asyncio.run(main())
    return capsys.readouterr().err


def test_progress_is_a_line_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(work_display, "_LINE_SECONDS", 0.001)
    first = watch(capsys, TransferProgress(40, 30, 60)).splitlines()[0]
    assert first.startswith("beer.parquet: 50 %, 40 changes, ")
    assert first.endswith(" s left")
    assert "beer.parquet: 0 changes, 0/s" in watch(capsys, TransferProgress(0, 0, 0))


def test_progress_is_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("rich.console.Console", lambda **options: Console(**options, force_terminal=True, width=100))
    shown = watch(capsys, TransferProgress(40, 30, 60))
    assert "beer.parquet" in shown
    assert "50%" in shown
    assert "40 changes" in shown
