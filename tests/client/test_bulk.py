"""Bulk writes: the outcome of every request, on real nodes and on peers that refuse, fall silent or disconnect."""

import asyncio
import json
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import connect
from penstock.client.connect.address import parse_address
from penstock.client.documents.bulk import NO_ANSWER, BulkWriter
from penstock.client.documents.document import compute_vbucket
from penstock.client.documents.write_requests import OPAQUES, WriteRows, compute_vbuckets, encode_writes
from penstock.errors import AccessDenied, UnknownCollection, Unreachable, UsageError
from penstock.wire.codec.constants import MAX_VALUE
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Add, Delete, DelWithMeta, GetLocked, Set, SetWithMeta
from tests.client.peer import Script, in_loop, reply
from tests.client.test_nodes import assign_vbuckets, keys_of, make_two_scripts
from tests.examples import scaled
from tests.node.balanced_nodes import run_nodes
from tests.node.wire_client import connected
from tests.patience import PATIENCE

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
KEYS = st.binary(min_size=1, max_size=12)

# Encoding


@given(st.lists(st.tuples(KEYS, st.binary(max_size=20), st.booleans(), U32, U32, U64, U64), max_size=8), st.data())
def test_encoded_columns_equal_encoded_messages(rows, data):
    keys, values, stores, flags, times, revs, cases = zip(*rows, strict=True) if rows else [[]] * 7
    values = [value if stored else b"" for value, stored in zip(values, stores, strict=True)]
    prefix, options = data.draw(st.sampled_from([b"", b"\0", b"\x81\x02"])), data.draw(st.sampled_from([None, 2]))
    number = {"flags": flags, "expiry": times, "rev_seqno": revs, "new_cas": cases}
    fields = {name: np.array(each, np.uint64) for name, each in number.items()}
    found = encode_writes(
        WriteRows(
            message_type=SetWithMeta,
            opcode=np.where(np.array(stores, bool), Opcode.SET_WITH_META, Opcode.DEL_WITH_META),
            keys=pa.array(keys, pa.binary()),
            values=pa.array(values, pa.binary()),
            prefixes=prefix,
            fields=fields if options is None else {**fields, "options": options},
        ),
        1000,
    )
    for place, (key, _, stored, flag, time, rev, cas) in enumerate(rows):
        head = {
            "opaque": OPAQUES + place,
            "vbucket": compute_vbucket(key, 1000),
            "key": prefix + key,
            "options": options,
        }
        common = {**head, "value": values[place], "flags": flag, "rev_seqno": rev, "new_cas": cas}
        message = SetWithMeta(expiry=time, **common) if stored else DelWithMeta(delete_time=time, **common)
        assert found.frames[place].as_py() == message.encode()
    assert compute_vbuckets(pa.array(keys, pa.binary()), 1000).tolist() == [compute_vbucket(key, 1000) for key in keys]


def test_rows_with_and_without_extras_are_encoded():
    stores = np.array([True, False, True])
    keys, values = pa.array([b"a", b"b", b"c"]), pa.array([b"1", b"", b"3"])
    rows = WriteRows(
        message_type=Set,
        opcode=np.where(stores, Opcode.ADD, Opcode.DELETE),
        keys=keys,
        values=values,
        fields={"flags": 7, "expiry": 0},
        extras_bytes=np.where(stores, 8, 0),
        cas=np.array([0, 5, 0]),
    )
    where: list[dict[str, Any]] = [
        {"opaque": OPAQUES + place, "vbucket": compute_vbucket(key, 4)} for place, key in enumerate([b"a", b"b", b"c"])
    ]
    expected = [
        Add(key=b"a", value=b"1", flags=7, **where[0]).encode(Opcode.ADD),
        Delete(key=b"b", cas=5, **where[1]).encode(),
        Add(key=b"c", value=b"3", flags=7, **where[2]).encode(Opcode.ADD),
    ]
    assert encode_writes(rows, 4).frames.to_pylist() == expected


# Real nodes


def make_rows(documents, opcode=Opcode.SET, **more):
    keys, values = zip(*documents, strict=True)
    more = {"fields": {"flags": 0, "expiry": 0}, **more}
    return WriteRows(
        message_type=Set, opcode=opcode, keys=pa.array(keys, pa.binary()), values=pa.array(values, pa.binary()), **more
    )


async def write(writer, documents, opcode=Opcode.SET, **more):
    prefix = await writer.find_key_prefix("_default", "_default")
    return await writer.write(encode_writes(make_rows(documents, opcode, prefixes=prefix, **more), writer.vbuckets))


def make_documents(first, behind, size=0):
    return [(b"k%d" % number, (b"v%d" % number).ljust(size)) for number in range(first, behind)]


@in_loop
async def test_documents_are_stored_and_their_cas_is_returned(running):
    documents = make_documents(0, 3000)
    async with BulkWriter(parse_address(running.url())) as writer, connect(running.url()) as bucket:
        outcomes = await write(writer, documents)
        found = await bucket.get_many(key for key, _ in documents)
        assert [each and (each.value, each.cas) for each in found] == [
            (value, cas) for (_, value), cas in zip(documents, outcomes.cas.tolist(), strict=True)
        ]
        assert not outcomes.status.any()
        assert not (await write(writer, documents[:1] * 50 + [(b"k0", b"last")])).faults
        assert (await bucket.get("k0")).value == b"last"


@in_loop
async def test_every_failed_row_has_its_reason(running):
    async with BulkWriter(parse_address(running.url())) as writer:
        await write(writer, make_documents(0, 5))
        long = (b"l" * 251, b"")
        outcomes = await write(
            writer, [*make_documents(4, 6), (b"big", bytes(MAX_VALUE + 1)), (b"", b""), long], Opcode.ADD
        )
        assert outcomes.status.tolist() == [
            Status.KEY_EEXISTS,
            Status.SUCCESS,
            Status.E2BIG,
            Status.EINVAL,
            Status.EINVAL,
        ]
        assert [outcomes.faults[place].text for place in (0, 2, 3, 4)] == [
            "KEY_EEXISTS",
            "value of 20971521 bytes, limit 20971520",
            "key of 0 bytes, expected 1 to 250",
            "key of 251 bytes, expected 1 to 250",
        ]
        assert outcomes.cas[0] == 0 < outcomes.cas[1]


@in_loop
async def test_missing_collection_is_an_error(running):
    async with BulkWriter(parse_address(running.url())) as writer:
        with pytest.raises(UnknownCollection, match=r"no collection '_default\.wine'"):
            await writer.find_key_prefix("_default", "wine")


@in_loop
async def test_locked_document_is_retried_and_then_reported(running):
    async with BulkWriter(parse_address(running.url(retrySeconds=0.3))) as writer, connect(running.url()) as bucket:
        await write(writer, make_documents(0, 3))
        with connected(running.node, "beer") as client:
            vbucket = compute_vbucket(b"k1", 4)
            assert client.status(GetLocked(key=b"k1", vbucket=vbucket, lock_time=20)) == Status.SUCCESS
        outcomes = await write(writer, [(b"k0", b"new"), (b"k1", b"new"), (b"k2", b"new")])
        assert {place: fault.status for place, fault in outcomes.faults.items()} == {1: Status.LOCKED}
        assert (await bucket.get("k2")).value == b"new"


@in_loop
async def test_each_node_gets_the_documents_of_its_vbuckets():
    with ExitStack() as stack:
        nodes = run_nodes(stack, 2, vbuckets=8)
        documents = make_documents(0, 5000, 200)
        async with (
            BulkWriter(parse_address(nodes[1].url("beer")), 100_000) as writer,
            connect(nodes[0].url("beer")) as bucket,
        ):
            assert not (await write(writer, documents)).faults
            assert [each and each.value for each in await bucket.get_many(key for key, _ in documents)] == [
                value for _, value in documents
            ]
            assert 50_000 < writer.peak_in_flight <= 100_000
        assert all(
            sum(vbucket.changes.high_seqno for vbucket in node.buckets["beer"].store.vbuckets) > 1000 for node in nodes
        )


# Scripted peers


@in_loop
async def test_moved_vbucket_is_written_on_its_new_node():
    one, two = make_two_scripts()
    async with one, two:
        assign_vbuckets((one, two), [0, 0])

        def moved(peer, frame):
            if frame.opcode == Opcode.SET and frame.specific == 1:
                assign_vbuckets((one, two), [0, 1])
                return reply(frame, Status.NOT_MY_VBUCKET, value=json.dumps(one.config).encode())
            return None

        one.answer = moved
        documents = make_documents(0, 40)
        async with BulkWriter(parse_address(one.url())) as writer:
            assert not (await write(writer, documents)).status.any()
        for script, vbucket in ((one, 0), (two, 1)):
            expected = [key for key, _ in documents if compute_vbucket(key, 2) == vbucket]
            assert [key for key in keys_of(script, Opcode.SET) if compute_vbucket(key, 2) == vbucket] == expected


@in_loop
async def test_retried_row_never_overwrites_a_newer_row():
    stored, refused = {}, 2

    def answer(peer, frame):
        nonlocal refused
        if frame.opcode != Opcode.SET:
            return None
        if frame.key == b"a" and refused:
            refused -= 1
            return reply(frame, Status.ETMPFAIL)
        stored[frame.key] = frame.value
        return reply(frame, cas=1)

    async with Script(answer) as script, BulkWriter(parse_address(script.url())) as writer:
        outcomes = await write(writer, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"a", b"3"), (b"b", b"2")])
        assert not outcomes.faults
        assert stored == {b"a": b"3", b"b": b"2"}
        assert [*keys_of(script, Opcode.SET)].count(b"b") == 2


NUISANCES = st.sampled_from([Status.ETMPFAIL, Status.EBUSY, Status.NOT_MY_VBUCKET, Status.LOCKED, "end", "end before"])


@settings(max_examples=scaled(25), deadline=None)
@given(
    st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 12), NUISANCES), max_size=4),
)
def test_last_row_of_a_key_is_stored_despite_any_failures(keys, nuisances):
    stored, left, behind = {}, [*nuisances], 0

    def answer(peer, frame):
        nonlocal behind
        if frame.opcode != Opcode.SET:
            return None
        behind += 1
        kind = None
        if left and behind > left[0][0]:
            (_, kind), behind = left.pop(0), 0
        if kind in ("end", "end before"):
            peer.transport.abort()
        if kind is None or kind == "end":
            stored[frame.key] = frame.value
        return b"" if isinstance(kind, str) else reply(frame, kind or Status.SUCCESS, cas=1)

    async def check():
        async with Script(answer) as script, BulkWriter(parse_address(script.url()), 200) as writer:
            rows = [(key, b"%d" % number) for number, key in enumerate(keys)]
            assert not (await write(writer, rows)).faults
            assert stored == dict(rows)

    asyncio.run(asyncio.wait_for(check(), PATIENCE))


@in_loop
async def test_lost_connection_is_replaced_and_only_repeatable_rows_are_sent_again():
    seen = []

    def answer(peer, frame):
        if frame.opcode != Opcode.SET:
            return None
        seen.append(frame.key)
        if len(seen) == 7:
            peer.transport.abort()
        return reply(frame, cas=1) if len(seen) > 7 else b""

    for again, expected in ((True, {Status.SUCCESS}), (False, {NO_ANSWER})):
        seen.clear()
        async with Script(answer) as script, BulkWriter(parse_address(script.url())) as writer:
            outcomes = await write(writer, make_documents(0, 7), repeatable=again)
            assert {*outcomes.status.tolist()} == expected
            assert len(seen) == (14 if again else 7)
            if not again:
                assert "it may have been written" in outcomes.faults[3].text


@in_loop
async def test_silent_node_is_waited_for_up_to_the_limit():
    async with Script(lambda peer, frame: b"" if frame.opcode == Opcode.SET else None) as script:
        url = script.url(operationTimeout=0.1, retrySeconds=0.3)
        async with BulkWriter(parse_address(url)) as writer:
            with pytest.raises(Unreachable, match=r"no answer to a request within 0\.1 s"):
                await write(writer, make_documents(0, 3))
        assert len(script.peers) > 1


@in_loop
async def test_expected_statuses_are_outcomes_without_errors(running):
    documents = make_documents(0, 20)
    async with BulkWriter(running.url()) as writer:
        await write(writer, documents[:10])
        prefix = await writer.find_key_prefix("_default", "_default")
        requests = encode_writes(make_rows(documents, Opcode.ADD, prefixes=prefix), writer.vbuckets)
        outcomes = await writer.write(requests, [Status.KEY_EEXISTS])
    assert outcomes.status.tolist() == [Status.KEY_EEXISTS] * 10 + [Status.SUCCESS] * 10
    assert [bool(cas) for cas in outcomes.cas.tolist()] == [False] * 10 + [True] * 10
    assert outcomes.faults == {}


@in_loop
async def test_lasting_refusal_is_not_retried():
    def answer(peer, frame):
        return reply(frame, Status.EACCESS) if frame.opcode == Opcode.SELECT_BUCKET else None

    async with Script(answer) as script:
        with pytest.raises(AccessDenied):
            async with BulkWriter(parse_address(script.url())):
                pass
        assert len(script.peers) == 1


@in_loop
async def test_bytes_in_flight_stay_within_the_limit():
    limit, most = 20_000, 0
    held: list[Frame] = []

    def let_go(peer):
        peer.transport.write(b"".join(reply(frame, cas=1) for frame in held))
        held.clear()

    def answer(peer, frame):
        nonlocal most
        if frame.opcode != Opcode.SET:
            return None
        if not held:
            asyncio.get_running_loop().call_later(0.005, let_go, peer)
        held.append(frame)
        most = max(most, sum(each.size for each in held))
        return b""

    async with Script(answer) as script, BulkWriter(parse_address(script.url()), limit) as writer:
        assert not (
            await write(writer, [*make_documents(0, 500, 300), (b"long", bytes(30_000)), *make_documents(0, 5)])
        ).faults
        assert most == 30_000 + 36  # a request above the limit is sent alone
        assert writer.peak_in_flight == most
        most = 0
        assert not (await write(writer, make_documents(0, 500, 300))).faults
        assert limit // 2 < most <= limit


def test_limit_of_zero_bytes_is_refused():
    with pytest.raises(UsageError, match="0 bytes in flight, expected 1 or more"):
        BulkWriter(parse_address("couchbase://127.0.0.1/beer"), 0)
