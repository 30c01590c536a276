"""The command `penstock replicate`."""

import json
import signal

import pytest

from tests.cli.test_processes import read_first_line, run_process, stop_process


def read_keys(run, node):
    shown = run("tail", "--from", "beginning", "--until", "now", "--json", "--url", node.url("beer"))
    return sorted(line["key"] for line in shown.json_lines)


@pytest.mark.parametrize("protocol", ["auto", "dcp", "upr", "tap"])
def test_once_copies_all_documents_and_ends(run, source, target, protocol):
    done = run(
        "replicate", "--from", source.url("beer"), "--to", target.url("beer"), "--until", "now", "--protocol", protocol
    )
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("16 of 16 vbuckets replicated over ")
    assert read_keys(run, target) == sorted(str(number) for number in range(100))


def test_json_lines_have_the_state(run, source, target):
    urls = ("--from", source.url("beer"), "--to", target.url("beer"))
    done = run("replicate", *urls, "--until", "now", "--json", "--vbucket", "3", "--vbucket", "5", "--vbucket", "3")
    last = done.json_lines[-1]
    assert last.keys() == {"vbuckets", "running", "protocol", "lag", "nodes", "copied", "bytes", "seconds"}
    assert (last["vbuckets"], last["running"], last["lag"]) == (2, 2, 0)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--protocol", "udp"], 2, "udp"),
        (["--vbucket", "16"], 2, "vbucket 16"),
        (["--vbucket", "-1"], 2, "-1"),
    ],
)
def test_wrong_options_are_explained(run, source, target, options, code, text):
    done = run("replicate", "--from", source.url("beer"), "--to", target.url("beer"), *options)
    assert (done.code, done.out) == (code, "")
    assert text in done.err


def test_active_target_is_refused_unless_it_may_be_overwritten(run, source, target):
    urls = ("--from", source.url("beer"), "--to", target.url("beer"), "--until", "now")
    run("load", "-", "--key", "id", "--url", target.url("beer"), stdin=b'{"id": "own"}')
    done = run("replicate", *urls)
    assert (done.code, "is active and has 1 changes" in done.err) == (2, True)
    assert run("replicate", *urls, "--overwrite").code == 0
    assert "own" not in read_keys(run, target)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_replication_cleanly(source, target, number):
    urls = ("--from", source.url("beer"), "--to", target.url("beer"))
    with run_process("replicate", *urls, "--json") as process:
        assert json.loads(read_first_line(process.stdout))["vbuckets"] == 16
        code, out, err = stop_process(process, number)
        assert (code, err) == (0, "")
        assert json.loads(out.splitlines()[-1])["protocol"] == "dcp"
