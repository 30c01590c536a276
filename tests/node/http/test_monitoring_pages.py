"""Metrics, health and readiness of a node over HTTP."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families

from penstock.node import Node
from penstock.node.stats.node_metrics import BUCKET_METRICS, MIRROR_METRICS, NODE_METRICS
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Open
from penstock.wire.messages.kv import SelectBucket, SeqnoPersistence
from tests.node.http.web_client import WebClient, as_user
from tests.node.test_login import log_in
from tests.node.watch import run
from tests.node.wire_client import connected, until_stat


def read_samples(web, **headers):
    """Return the metrics as {(name, label values without le): value}; of histograms the bucket +Inf only."""
    response = web.get("/metrics", headers=headers)
    assert response.status == 200, response
    families = text_string_to_metric_families(response.body.decode())
    samples = [sample for family in families for sample in family.samples]
    return {
        (each.name, *(value for name, value in sorted(each.labels.items()) if name != "le")): each.value
        for each in samples
        if each.labels.get("le", "+Inf") == "+Inf"
    }


def work(node, client):
    """Give every kind of statistic a value that is not 0, as far as one connection can."""
    for n in range(20):
        client.set(b"k%d" % n, b"x" * 100)
    client.get(b"k1")
    client.get(b"missing")
    client.delete(b"k2")
    assert client.status(SeqnoPersistence(vbucket=0, seqno=21)) == Status.SUCCESS
    client.open()
    assert client.stream(start=7, vbuuid=12345).specific == Status.ROLLBACK
    assert client.stream(end=MAX_SEQNO).specific == Status.SUCCESS
    client.skip_to(opcode=Opcode.DCP_DELETION)  # the last change: the stream has sent everything


def test_metrics_equal_the_statistics(tmp_path):
    with Node.running(["beer"], 4, data_dir=tmp_path) as node, connected(node, "beer") as client:
        work(node, client)
        with connected(node, "beer") as other:
            stats, found = other.stats(), read_samples(WebClient(node))
    changing = {"uptime", "rusage_user", "rusage_system", "ep_db_file_size", "ep_commit_last"}
    compared = {}
    for metrics, labels in ((NODE_METRICS, ()), (BUCKET_METRICS, ("beer",))):
        for metric in metrics:
            name = f"penstock_node_{metric.name}{'_total' if metric.is_counter else ''}"
            for value, stat in metric.stats.items():
                if stat in stats and stat not in changing:
                    key = (name, *labels, *([value] if metric.label else []))
                    compared[key] = (found[key], metric.read(stats[stat]))
    assert {key: pair for key, pair in compared.items() if pair[0] != pair[1]} == {}
    assert len(compared) > 70
    # These must not be equal because both are 0:
    for name, *values in (
        ("operations_total", "beer", "get"),
        ("operations_total", "beer", "delete"),
        ("get_misses_total", "beer"),
        ("documents", "beer", "active"),
        ("log_bytes", "beer", "dead"),
        ("commits_total", "beer"),
        ("commit_duration_seconds_bucket", "beer"),
        ("command_duration_seconds_count", "beer", "set"),
        ("stat_duration_seconds_count", "beer"),
        ("streams", "beer", "dcp"),
        ("stream_rollbacks_total", "beer", "dcp"),
        ("refused_requests_total", "key_enoent"),
        ("disk_free_bytes",),
    ):
        assert found[f"penstock_node_{name}", *values] > 0, name


def test_number_of_series_does_not_depend_on_vbuckets_keys_or_clients():
    counts = []
    for vbuckets in (1, 64):
        with Node.running(["beer"], vbuckets) as node, connected(node, "beer") as client:
            for vbucket in range(vbuckets):
                client.set(b"k%d" % vbucket, vbucket=vbucket)
            client.open(f"consumer-{vbuckets}")
            client.stream()
            counts.append(len(read_samples(WebClient(node))))
    assert counts[0] == counts[1]


def test_metrics_have_the_format_that_the_client_accepts(web):
    response = web.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert any(family.name == "penstock_node_vbuckets" for family in parse_open_metrics(response.body.decode()))


def test_metrics_need_the_rights_of_statistics(guarded):
    assert WebClient(guarded).get("/metrics").status == 401
    refused = as_user(guarded, "reader").get("/metrics")
    assert (refused.status, refused.json["permissions"]) == (403, ["SIMPLE_STATS"])
    assert WebClient(guarded, ("root", "wrong")).get("/metrics").status == 401
    vbuckets = "penstock_node_vbuckets"
    seen = {
        name: {key[1] for key in read_samples(as_user(guarded, name)) if key[0] == vbuckets}
        for name in ("root", "follower", "prometheus")
    }
    assert seen == {"root": {"beer", "wine"}, "follower": {"beer"}, "prometheus": {"beer", "wine"}}
    assert read_samples(as_user(guarded, "follower"))["penstock_node_refused_logins_total",] == 1


def test_health_and_readiness_need_no_login(guarded):
    web = WebClient(guarded)
    assert (web.get("/healthz").status, web.get("/healthz").body) == (200, b"alive\n")
    assert (web.get("/readyz").status, web.get("/readyz").json) == (200, {"ready": True, "problems": []})
    room = guarded.buckets["beer"].store.log.room
    run(guarded, lambda: room.refuse_changes("/secret/place: no space"))
    refused = web.get("/readyz")
    assert (refused.status, refused.json["problems"]) == (503, ["1 of 2 buckets refuse changes because of the disk"])
    assert web.get("/healthz").status == 200


def test_reader_of_statistics_reads_no_documents(guarded):
    with connected(guarded) as client:
        log_in(client, "prometheus", "prometheus's")
        assert client.status(SelectBucket(key=b"beer")) == Status.SUCCESS
        assert client.stats()["curr_items"] == "0"
        assert [client.get(b"k").specific, client.set(b"k").specific] == [Status.EACCESS] * 2
        assert client.status(Open(key=b"x", flags=OpenFlag.PRODUCER)) == Status.EACCESS
    assert as_user(guarded, "prometheus").post("/pools/default/buckets", name="other").status == 403


def test_mirror_has_the_metrics_of_its_progress(node):
    with connected(node, "beer") as client:
        client.set(b"k")
    with Node.running(follow=node.url("beer")) as mirror, connected(mirror, "beer") as client:
        until_stat(client, "changes", "1", "follow")
        stats, found = client.stats("follow"), read_samples(WebClient(mirror))
    values = {}
    for metric in MIRROR_METRICS:
        (stat,) = metric.stats.values()
        values[stat] = found[f"penstock_node_{metric.name}{'_total' * metric.is_counter}", "beer"]
        assert values[stat] == metric.read(stats[stat])
    assert (values["connected"], values["changes"], values["vbuckets"]) == (1, 1, 16)
    assert found["penstock_node_documents", "beer", "replica"] == 1
