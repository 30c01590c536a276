"""Replication between two nodes as ns_server drives it: it passes frames from a producer to a consumer and back."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import Datatype, OpenFlag
from penstock.wire.codec.frame import BODY_LENGTH, HEADER_BYTES
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import AddStream, Open
from tests.node.wire_client import WireClient, connected

Cut = Callable[[bytes], bool]

FEATURES = (Feature.XATTR, Feature.SNAPPY, Feature.JSON, Feature.COLLECTIONS)
FLAGS = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES


@contextmanager
def replicating(
    source,
    target,
    bucket: str,
    vbuckets: Sequence[int],
    *,
    flags: int = 0,
    cuts: Cut | None = None,
    consumer_name: str = "",
) -> Iterator[dict[int, int]]:
    """Copy vbuckets of one node to another, or with the flag TAKEOVER move them.

    Args:
        source: the node of the producer.
        target: the node of the consumer.
        bucket: name of the bucket on both nodes.
        vbuckets: the vbuckets.
        flags: flags of ADD_STREAM.
        cuts: returns for each frame whether both connections end instead of it.
        consumer_name: the target's name in the topology; empty: it gets no synchronous writes.

    Yields:
        vbucket -> the status of the reply to its ADD_STREAM, as far as replies have come.
    """
    statuses: dict[int, int] = {}
    with connected(source, bucket) as producer, connected(target, bucket) as consumer:
        name = f"replication {consumer_name}".rstrip()
        producer.hello(*FEATURES).open(name, FLAGS | OpenFlag.PRODUCER)
        consumer.hello(*FEATURES)
        request = Open(key=name.encode(), flags=FLAGS)
        if consumer_name:
            value = json.dumps({"consumer_name": consumer_name}).encode()
            request = Open(key=name.encode(), flags=FLAGS, value=value, datatype=Datatype.JSON)
        assert consumer.status(request) == Status.SUCCESS
        consumer.send(*(AddStream(vbucket=vbucket, opaque=vbucket, flags=flags) for vbucket in vbuckets))
        pumps = [
            threading.Thread(target=_pass_on, args=(producer, consumer, None, cuts)),
            threading.Thread(target=_pass_on, args=(consumer, producer, statuses, cuts)),
        ]
        for pump in pumps:
            pump.start()
        try:
            yield statuses
        finally:
            _end(producer, consumer)
            for pump in pumps:
                pump.join()


def _end(*clients: WireClient) -> None:
    for client in clients:
        with suppress(OSError):  # the node may have ended the connection before
            client.socket.shutdown(socket.SHUT_RDWR)


def _pass_on(receiver: WireClient, sender: WireClient, statuses: dict[int, int] | None, cuts: Cut | None) -> None:
    """Pass frames on until the connection ends. Replies to ADD_STREAM go into `statuses`."""
    data = b""
    try:
        while more := receiver.socket.recv(1 << 16):
            data += more
            while len(data) >= HEADER_BYTES:
                end = HEADER_BYTES + BODY_LENGTH.unpack_from(data)[0]
                if len(data) < end:
                    break
                frame, data = data[:end], data[end:]
                if cuts is not None and cuts(frame):
                    _end(receiver, sender)
                    return
                if statuses is not None and frame[:2] == bytes((Magic.RESPONSE, Opcode.DCP_ADD_STREAM)):
                    statuses[int.from_bytes(frame[12:16], "big")] = int.from_bytes(frame[6:8], "big")
                else:
                    sender.socket.sendall(frame)
    except OSError:
        pass  # the other pump has ended the connection
