"""Properties of all commands: help, examples, exit codes, one sentence for each error."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from penstock import Node
from penstock.cli.base.app import app
from penstock.cli.entry import register_commands
from penstock.version import describe_version
from tests.patience import PATIENCE

register_commands()

ROOT = Path(__file__).parents[2]


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (arguments, command) of all commands of a group."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


FOUND = list(commands(typer.main.get_command(app)))
COMMANDS = [pytest.param(path, command, id=" ".join(path)) for path, command in FOUND]


def test_program_without_arguments_lists_its_commands(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    for path, _ in FOUND:
        assert path[0] in out
    assert "penstock serve --bucket beer" in out
    assert run("pipeline").code == 0


def test_version_is_printed(run):
    assert run("--version") == (0, f"{describe_version()}\n", "")


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_every_command_has_help_an_example_and_a_section_in_the_docs(run, path, command):
    code, out, _ = run(*path, "--help")
    assert code == 0
    example = f"$ penstock {' '.join(path)}"
    assert example in out
    assert all(parameter.help for parameter in command.params)
    assert f"\n## penstock {' '.join(path)}\n" in (ROOT / "docs" / "cli.md").read_text()


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_every_command_that_prints_data_can_print_json(path, command):
    if path not in (("demo",), ("schema",), ("completion",)):
        assert "--json" in [option for parameter in command.params for option in parameter.opts]


@pytest.mark.process
def test_docs_agree_with_the_commands():
    subprocess.run([sys.executable, "tools/generate_cli.py", "--check"], cwd=ROOT, check=True, timeout=PATIENCE)


WRONG = [
    ("nonsense", "No such command 'nonsense' (see penstock --help)"),
    ("--nonsense", "No such option: --nonsense"),
    ("load", "Missing argument 'FILE' (see penstock load --help)"),
    ("load x.jsonl", "Missing option '--key'"),
    ("load missing.jsonl --key id", "missing.jsonl cannot be read (No such file or directory), expected a file"),
    ("load . --key id", ". is a directory, expected a file of JSON lines"),
    ("load - --key id --on-error explode", "'explode' is not one of 'skip', 'stop' (see penstock load --help)"),
    ("load - --key id --expiry -1", "greater than or equal to 0, found '-1'"),
    ("tail --url beer", "connection string 'beer' has no scheme"),
    ("tail --url http://localhost/beer", "begins with http://, expected couchbase://"),
    ("tail --url couchbase://[::1", "connection string"),
    ("tail --url couchbase://127.0.0.1/b?retrySeconds=x", "option retrySeconds is 'x', expected a number"),
    ("tail --from yesterday", "'yesterday' is not one of 'beginning', 'now'"),
    ("tail --limit 0", "greater than or equal to 1, found '0'"),
    ("tail --vbucket x", "found 'x'"),
    ("stats --url couchbase://127.0.0.1:0/beer", "port '0' in the connection string"),
    ("serve --host 0.0.0.0", "without users a node listens on a loopback address only"),
    ("serve --host example.org", "expected an address, such as 127.0.0.1"),
    ("serve --port 65536", "less than or equal to 65535, found '65536'"),
    ("serve --port 0 --vbuckets 1000", "expected a power of two"),
    ("serve --port 0 --bucket a/b", "bucket 'a/b': expected"),
    ("serve --port 0 --bucket a --bucket a", "named twice"),
    ("pipeline run --to lake --url beer", "connection string 'beer' has no scheme"),
    ("pipeline run --to lake --max-changes 0", "greater than or equal to 1, found '0'"),
    ("pipeline show missing current", "there is no lake at"),
    ("pipeline show missing changelog --json", "there is no lake at"),
    ("pipeline show missing nonsense", "there is no lake at"),
    ("pipeline show ftp://bucket/lake current", "the scheme is 'ftp'; expected a directory"),
]


@pytest.mark.parametrize(("line", "reason"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_usage_is_one_sentence_and_exit_code_2(run, tmp_path, monkeypatch, line, reason):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*line.split())
    assert (code, out) == (2, "")
    assert err.startswith("penstock: ")
    assert err.count("\n") == 1
    assert reason in err
    assert not list(tmp_path.iterdir())


def test_absent_node_is_a_failure_at_run_time(run):
    with Node.running(["beer"], vbuckets=8) as node:
        url = node.url("beer")
    code, out, err = run("stats", "--url", f"{url}?retrySeconds=0.05")
    assert (code, out) == (1, "")
    assert "did not serve for" in err


def test_missing_bucket_is_wrong_usage(run, node):
    code, _, err = run("tail", "--url", node.url("beer").replace("beer", "wine"))
    assert code == 2
    assert "no bucket 'wine'" in err


def test_debug_shows_the_traceback(run):
    _, _, err = run("--debug", "tail", "--url", "beer")
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("penstock: connection string")


@pytest.mark.process
def test_start_up_imports_no_heavy_libraries():
    code = (
        "import sys; from penstock.cli.entry import register_commands; register_commands()\n"
        "print(sorted({'pyarrow', 'numpy', 'pyspark', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=PATIENCE) == "[]\n"


@pytest.mark.process
@pytest.mark.parametrize("module", ["penstock.client.bucket", "penstock.node.server.node"])
def test_stream_starts_without_pandas(module):
    """pyarrow imports pandas, if that is installed, for the first Python object that it converts to an array."""
    code = f"import sys, {module}; print('pyarrow' in sys.modules, 'pandas' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=PATIENCE) == "True False\n"


@pytest.mark.process
def test_a_node_serves_without_pandas():
    """The import of pandas would stop all connections for a third of a second, at the first stream or compaction."""
    code = (
        "import sys; import numpy as np\n"
        "from penstock.store.log.segment import gather_frames\n"
        "from penstock.wire.columns.frame_form import FORMS\n"
        "from penstock.wire.columns.reframe import reframe\n"
        "from penstock.wire.messages.dcp import Mutation\n"
        "frame = Mutation(key=b'\\0k', value=b'v', by_seqno=1).encode()\n"
        "begins = np.arange(40) * len(frame)\n"
        "for form in FORMS.values():\n"
        "    reframe(bytearray(frame * 40), begins, form)\n"
        "gather_frames(memoryview(frame * 40), begins, np.full(40, len(frame), np.uint32))\n"
        "print('pyarrow' in sys.modules, 'pandas' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=PATIENCE) == "True False\n"


@pytest.mark.process
def test_unexpected_error_is_one_sentence_too():
    code = (
        "import sys; from penstock.cli.base.app import app; from penstock.cli import main\n"
        "@app.command()\ndef stumble() -> None:\n    {}['x']\n"
        "sys.exit(main(['stumble']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert done.stderr == "penstock: unexpected KeyError: 'x' (penstock --debug … prints the traceback)\n"


@pytest.mark.process
def test_closed_output_pipe_is_no_error():
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "workload", "--docs", "-", "--count", "50000"],
        stdout=writing,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(writing)
        with open(reading, encoding="utf-8") as lines:
            first = json.loads(lines.readline())
        _, err = process.communicate(timeout=PATIENCE)
    assert first["id"].endswith("_0")
    assert err == b""


@pytest.mark.process
def test_output_is_utf8_in_any_locale():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "workload", "--docs", "-", "--count", "200"],
        capture_output=True, env=environment, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "Kölsch" in done.stdout.decode()
