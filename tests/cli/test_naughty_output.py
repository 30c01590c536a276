"""Names with control characters, line breaks and characters that change the direction of writing, in all output."""

import ast
import asyncio
import json
import logging
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from penstock import connect
from penstock.cli.base.logs import LogFormat, configure_log, logging_on_stderr
from penstock.cli.base.show import format_json_line, format_name, print_text, warn
from penstock.cli.base.text_tables import make_table
from penstock.cli.base.work_display import show_status, show_transfer
from penstock.client.dumps.bucket_dump import TransferProgress
from tests.naughty_names import BYTES, TEXTS

CLI = Path(__file__).parents[2] / "src" / "penstock" / "cli"
NAMES = pytest.mark.parametrize("name", TEXTS)


def assert_lines(output, count):
    """Check that a terminal shows each character of the output as it stands."""
    lines = output.split("\n")
    assert lines.pop() == ""
    assert len(lines) == count
    assert [line for line in lines if not line.isprintable()] == []


@NAMES
def test_results_and_warnings(name, capsys):
    print_text(f"a {format_name(name)}\nb")
    warn(f"no such thing: {name}")
    print_text(f"status {format_name(name)}", on_stderr=True)
    output = capsys.readouterr()
    assert_lines(output.out, 2)
    assert_lines(output.err, 2)


@NAMES
@pytest.mark.parametrize("form", [None, *LogFormat])
def test_log(name, form, capsys):
    with logging_on_stderr():
        configure_log(None, form)
        logging.getLogger("penstock.test").warning("the peer %s", name)
        try:
            raise ValueError(name)
        except ValueError:
            logging.getLogger("penstock.test").exception("the peer %s", name)
    output = capsys.readouterr().err
    assert_lines(output, output.count("\n"))
    if form is LogFormat.JSON:
        assert [json.loads(line)["message"] for line in output.splitlines()] == [f"the peer {name}"] * 2
    else:
        assert sum("the peer" in line for line in output.splitlines()) == 2


@given(st.text())
def test_json_is_exact_and_printable(text):
    line = format_json_line({text: [text]})
    assert line.isprintable()
    assert json.loads(line) == {text: [text]}


@NAMES
def test_rich_tables(name, capsys):
    row = {"key": name, "event": name, "value": name.encode(), "cas": 1}
    console = Console(file=sys.stdout, width=400)
    console.print(make_table("title", tuple(row), [row], "caption"))
    assert_lines(capsys.readouterr().out, 4)


@contextmanager
def on_terminal(monkeypatch):
    with monkeypatch.context() as here:
        here.setattr("penstock.cli.base.work_display.can_redraw", lambda stream: True)
        yield


@NAMES
def test_progress_of_a_file_of_any_name(name, monkeypatch, capsys):
    async def transfer():
        async with show_transfer(name, lambda: TransferProgress(1, 1, 2), is_quiet=False):
            await asyncio.sleep(0)

    with on_terminal(monkeypatch):
        asyncio.run(transfer())
        with show_status(name, is_quiet=False) as show:
            show(name)
    if not name.isprintable():
        assert name not in capsys.readouterr().err


def test_commands_on_documents_of_any_key(on_beer, node):
    async def store():
        async with connect(node.url("beer")) as bucket:
            for key in BYTES:
                await bucket.upsert(key, b"")

    asyncio.run(store())
    code, out, err = on_beer("tail", "--from", "beginning", "--until", "now", "--keys-only")
    assert (code, err) == (0, "")
    assert_lines(out, len(BYTES))
    for key in BYTES:
        assert [line for line in out.splitlines() if f" mutation   {format_name(key):32} " in line], key
    found = on_beer("tail", "--from", "beginning", "--until", "now", "--json")
    assert_lines(found.out, len(BYTES))
    assert {line["key"] for line in found.json_lines if "key" in line} >= {*TEXTS}


@NAMES
@pytest.mark.parametrize("command", ["list", "show", "reset"])
def test_positions_of_any_name(name, command, on_beer):
    if "\0" in name:
        return  # no command line has it
    for place in (f"document:{name}", f"group:{name}"):
        code, out, err = on_beer("positions", command, place)
        assert_lines(out + err, 1)
        assert code in (0, 1, 2)


def test_commands_print_by_one_function():
    """Only these print text that has no names: help, scripts, and rich's consoles."""
    others = {"completion_command", "demo_run", "demo_tour", "demo", "doctor_command", "top_command", "text_tables"}
    found = set()
    for path in CLI.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_print = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("print")
            if is_print and ast.unparse(node) != "print(context.get_help())":
                found.add(path.stem)
    assert found == others | {"show", "logs"}
