"""`penstock streams`: the change streams of a bucket are listed and closed."""

import asyncio

import pytest

from penstock.client.topology.missing_vbuckets import format_ranges
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.messages.upr import UprStreamReq
from tests.node.wire_client import connected


@pytest.fixture
def followers(node):
    """A DCP connection and a UPR connection, each with a stream."""
    with connected(node, "beer") as dcp, connected(node, "beer") as upr:
        dcp.open("indexer").stream(3, end=7)
        upr.ask(UprStreamReq(start_seqno=0, end_seqno=MAX_SEQNO))
        yield dcp, upr


def test_streams_are_listed(on_beer, followers):
    code, out, err = on_beer("streams", "list")
    assert (code, err) == (0, "")
    head, *rows = [line.split() for line in out.splitlines()]
    assert head == ["name", "protocol", "role", "from", "agent", "vbuckets", "without", "sent", "remaining"]
    assert [(*row[:3], *row[4:]) for row in rows] == [
        ("indexer", "dcp", "producer", "-", "3", "-", "0", "0"),
        ("anon_1", "upr", "producer", "-", "0", "-", "0", "0"),
    ]
    assert all(row[3].startswith("anonymous@127.0.0.1:") for row in rows)


def test_consumer_is_listed_and_closed(on_beer, node):
    with connected(node, "beer") as peer:
        peer.open("copy", flags=0)
        _, row = on_beer("streams", "list").lines
        assert row.split()[:3] == ["copy", "dcp", "consumer"]
        assert on_beer("streams", "close", "copy").code == 0
        assert peer.ended()


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([7], "7"), ([0, 1, 2], "0-2"), ([5, 1, 0, 3, 5], "0-1,3,5")])
def test_numbers_are_formatted_as_ranges(numbers, text):
    assert format_ranges(numbers) == text


def test_streams_are_listed_as_json(on_beer, followers):
    first, second = on_beer("streams", "list", "--json").json_lines
    assert (first["name"], first["dialect"], first["streams"][0]["end_seqno"]) == ("indexer", "dcp", 7)
    assert second["label"].startswith("anonymous@127.0.0.1:")


def test_name_cannot_send_control_sequences_to_the_terminal(on_beer, node):
    with connected(node, "beer") as consumer:
        consumer.open("\x1b[2Jred")
        _, row = on_beer("streams", "list").lines
        assert row.split()[0] == "\\x1b[2Jred"


def test_statistics_cannot_send_control_sequences_to_the_terminal(on_beer, node):
    with connected(node, "beer") as consumer:
        consumer.open("\x1b[2Jred")
        lines = on_beer("stats", "dcp").lines
        assert any("\\x1b[2Jred" in line for line in lines)
        assert not any("\x1b" in line for line in lines)


def test_bucket_without_streams_has_an_empty_list(on_beer):
    assert on_beer("streams", "list").lines == ["name  protocol  role  from  agent  vbuckets  without  sent  remaining"]
    assert on_beer("streams", "list", "--json") == (0, "", "")


def test_streams_are_closed_by_name(on_beer, followers):
    dcp, upr = followers
    assert on_beer("streams", "close", "indexer") == (0, "Closed indexer.\n", "")
    assert dcp.ended()
    assert on_beer("streams", "close", "anon_1", "--json").json == {"closed": "anon_1"}
    upr.receive()  # the start of the stream, which the node sent before
    assert upr.ended()


def test_closing_an_unknown_name_is_an_error(on_beer):
    code, out, err = on_beer("streams", "close", "nobody")
    assert (code, out) == (1, "")
    assert err.startswith("penstock: no change-stream connection 'nobody' at ")


def test_client_closes_streams_too(node, followers):
    import penstock

    async def close():
        async with penstock.connect(node.url("beer")) as bucket:
            await bucket.close_streams("indexer")

    asyncio.run(close())
    assert followers[0].ended()
