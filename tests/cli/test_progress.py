"""Progress of long commands: on a terminal of 80x24, on a terminal without cursor, and without a terminal."""

import re
import sys
import threading

import pytest

from penstock.cli.base import work_display
from penstock.cli.base.work_display import show_status
from tests.cli.terminals import COLUMNS, run_on_terminal
from tests.patience import PATIENCE

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[34][0-9][0-9;]*m")


def show_load(node, path, options=(), **environment):
    """Return all that a terminal gets from `penstock load`."""
    command = [sys.executable, "-m", "penstock", "load", str(path), "--key", "id", *options]
    with run_on_terminal(command, {"PENSTOCK_URL": node.url("beer"), **environment}) as terminal:
        shown = terminal.read_all()
        assert terminal.process.returncode == 0
    return shown


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / f"{'long' * 8}.jsonl"
    path.write_text("".join(f'{{"id": {number}}}\n' for number in range(5000)))
    return path


@pytest.mark.process
def test_bar_has_rate_fits_the_terminal_and_obeys_no_color(node, documents):
    shown = show_load(node, documents, TERM="xterm-256color", NO_COLOR="1")
    assert not _COLOUR.search(shown)
    assert re.search(r"documents, [0-9,]+/s", shown)
    lines = re.split(r"[\r\n]+", _ESCAPE.sub("", shown))
    assert max(map(len, lines)) <= COLUMNS
    assert "5000 documents loaded, 0 skipped" in lines[-2]


@pytest.mark.process
def test_terminal_without_cursor_gets_plain_text(node, documents):
    shown = show_load(node, documents, TERM="dumb")
    assert re.fullmatch(r"5000 documents loaded, 0 skipped, [0-9.]+ s\r\n", shown)


@pytest.mark.process
def test_quiet_shows_nothing(node, documents):
    assert show_load(node, documents, ["--quiet"], TERM="xterm-256color") == ""


def test_status_is_a_line_from_time_to_time(monkeypatch, capsys):
    printed = threading.Event()

    class Recorder:
        def isatty(self):
            return False

        def write(self, text):
            if "second" in text:
                printed.set()

        def flush(self):
            pass

    monkeypatch.setattr(work_display, "_LINE_SECONDS", 0.001)
    monkeypatch.setattr(sys, "stderr", Recorder())
    with show_status("first", is_quiet=False) as update:
        update("second")
        assert printed.wait(PATIENCE)
    printed.clear()
    with show_status("second", is_quiet=True):
        assert not printed.is_set()
