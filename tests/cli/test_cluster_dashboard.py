"""The dashboard has the table of `penstock cluster status`."""

import json
import urllib.request
from urllib.parse import urlsplit

import pytest

from tests.cli.test_cluster_commands import name, read_status, write_file
from tests.client.dashboards import run_dashboard
from tests.node.serve_process import run_processes, wait_for
from tests.patience import PATIENCE


def read_chains(url):
    """Return the rows as the page gets them."""
    parts = urlsplit(url)
    token = parts.fragment.removeprefix("token=")
    request = urllib.request.Request(
        f"http://{parts.netloc}{parts.path}/buckets/beer/chains", headers={"authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)["rows"]


@pytest.mark.process
def test_rows_are_those_of_the_status(run, tmp_path):
    with run_processes(tmp_path, 2) as processes:
        file = write_file(tmp_path / "lab.toml", processes)
        assert run("cluster", "apply", file).code == 0
        with run_dashboard(f"couchbase://{name(processes[0])}/beer?retrySeconds=0.001") as url:
            found, (_, expected) = read_chains(url), read_status(run, file)
            ages = [row.pop("age") for row in found]
            assert [list(age) for age in ages] == [list(row.pop("age")) for row in expected]
            assert found == expected
            processes[1].kill()
            wait_for(lambda: all(row["state"] != "ok" for row in read_chains(url)), "faults of all vbuckets")
            found, (_, expected) = read_chains(url), read_status(run, file)
            assert [row["state"] for row in found] == [row["state"] for row in expected]
