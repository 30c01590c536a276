"""curl and urllib3 at the HTTP ports of a node, plain and with TLS."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import urllib3

from penstock.node import Node
from tests.compat.installed import find_program
from tests.patience import PATIENCE

BUCKETS = "/pools/default/buckets"
LONG_BODY = b"name=" + b"x" * (2 << 20)


@pytest.fixture(params=["http", "https"])
def base(request, tls_node, open_node):
    """The URL of a node, and the certificate of its authority; None without TLS."""
    if request.param == "http":
        return f"http://127.0.0.1:{open_node.http_port}", None
    return f"https://127.0.0.1:{tls_node.https_port}", tls_node.files / "ca.pem"


def run_curl(base, path, *options, data=b""):
    """Return the head and the body of the last response that curl received."""
    url, authority = base
    login = [] if authority is None else ["--cacert", str(authority), "--user", "alice:wonderland"]
    command = [
        find_program("curl"),
        "--silent",
        "--show-error",
        "--include",
        "--max-time",
        str(PATIENCE),
        *login,
        *options,
    ]
    done = subprocess.run([*command, url + path], input=data, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    *heads, body = done.stdout.split(b"\r\n\r\n")
    return heads[-1], body


ROWS = [
    ("GET", ["/pools"], 200),
    ("HEAD", ["/pools", "--head"], 200),
    ("HTTP/1.0", ["/pools", "--http1.0"], 200),
    ("an offer of HTTP/2", ["/pools", "--http2"], 200),
    ("a slash at the end", ["/pools/"], 200),
    ("a long body, announced", [BUCKETS, "--data-binary", "@-"], 413),
    ("a long body, in chunks", [BUCKETS, "--header", "Transfer-Encoding: chunked", "--data-binary", "@-"], 413),
    ("a long header", ["/pools", "--header", "X: " + "x" * 20_000], 431),
    ("two lengths", ["/pools", "--header", "Content-Length: 1", "--header", "Transfer-Encoding: chunked"], 400),
]


@pytest.mark.parametrize(("options", "status"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_curl_reads_a_page(base, options, status):
    path, *more = options
    head, _ = run_curl(base, path, *more, data=LONG_BODY if "@-" in more else b"")
    assert int(head.split(b" ", 2)[1]) == status


def test_curl_sends_a_form(open_node):
    base = f"http://127.0.0.1:{open_node.http_port}", None
    chunked = ["--header", "Transfer-Encoding: chunked"]
    for options in ([], chunked):
        head, _ = run_curl(base, BUCKETS, *options, "--data", "name=wine", "--data", "ramQuotaMB=100")
        assert head.startswith(b"HTTP/1.1 202 Accepted")
        head, _ = run_curl(base, f"{BUCKETS}/wine", "--request", "DELETE")
        assert head.startswith(b"HTTP/1.1 200 OK")


def test_urllib3_reuses_its_connections(open_node):
    with urllib3.PoolManager(maxsize=8, retries=False, timeout=PATIENCE) as pool, ThreadPoolExecutor(8) as threads:
        url = f"http://127.0.0.1:{open_node.http_port}"
        statuses = threads.map(lambda _: pool.request("GET", f"{url}/pools/default/b/default").status, range(200))
        assert set(statuses) == {200}
        answer = pool.request("POST", url + BUCKETS, body=iter([b"name=default", b"&ramQuotaMB=100"]))
        assert (answer.status, "already exists" in answer.data.decode()) == (400, True)
        assert pool.connection_from_url(url).num_connections <= 9  # the chunked request used its own connection


def test_urllib3_reads_a_stream_to_its_end():
    with Node.running(["beer"], vbuckets=4) as node, urllib3.PoolManager(retries=False, timeout=PATIENCE) as pool:
        url = f"http://127.0.0.1:{node.http_port}"
        answer = pool.request("GET", f"{url}/pools/default/bs/beer", preload_content=False)
        pieces = answer.stream()
        assert b'"name":"beer"' in next(pieces)
        assert pool.request("DELETE", f"{url}{BUCKETS}/beer").status == 200
        assert not list(pieces)
