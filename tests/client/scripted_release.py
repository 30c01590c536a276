"""A scripted server of one release: `releases.toml` has its answers, this module sends them over real sockets.

async with ReleaseServer(RELEASES["Couchbase 5.0.1"]) as server:
    connect(server.url(), username=server.user, password=server.password)
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.wire.codec.constants import MAX_SEQNO, Feature
from penstock.wire.codec.frame import Frame, cut_frame, join_frame
from penstock.wire.codec.layout import Message, decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages import dcp, system_event
from penstock.wire.messages.kv import pack_failover_log, pack_features, pack_vb_seqnos, unpack_features
from penstock.wire.values.scram import SCRAM, ScramKeys, ScramServer
from tests.client.old_server import answer_cram_md5
from tests.client.peer import Peer, Script, reply, stats_reply

_DATA = Path(__file__).parent / "releases.toml"
_CAPTURES = Path(__file__).parents[1] / "captures"
_STREAMED = {Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION, Opcode.DCP_DELETION}
_VBUCKETS = 2


class Release(msgspec.Struct, forbid_unknown_fields=True):
    """The answers of one release. The attributes are those of `releases.toml`."""

    name: str
    sources: str
    mechanisms: str
    map: str
    changes: list[list[str | int]]
    protocol: str = "dcp"
    features: list[str] = []
    statuses: dict[str, str] = {}
    controls: list[str] = []
    control_statuses: dict[str, str] = {}
    open_flags: int = 0xFFFF_FFFF
    noop_is_mandatory: bool = False
    manifest: str = ""
    stats: dict[str, dict[str, str]] = {}
    seqnos: dict[int, int] = {}
    messages: list[dict[str, Any]] = []
    recording: str = ""


def _read_releases() -> Mapping[str, Release]:
    found = msgspec.toml.decode(_DATA.read_bytes(), type=dict[str, list[Release]], strict=False)
    return {release.name: release for release in found["release"]}


RELEASES = _read_releases()


def _make_message(given: Mapping[str, Any], **common: Any) -> bytes:
    """Return the bytes of a message in the table: the name of its class, and its fields."""
    fields: dict[str, Any] = {
        name: value.encode() if isinstance(value, str) else value for name, value in given.items()
    }
    kind: type[Message] = getattr(dcp, fields.pop("message").decode())
    if hexadecimal := fields.pop("hex_value", None):
        fields["value"] = bytes.fromhex(hexadecimal.decode())
    if subject := fields.pop("subject", None):
        event = subject["event"]
        created = system_event.CreatedCollection(**{name: value for name, value in subject.items() if name != "event"})
        fields |= {"event": event, **system_event.pack_system_event(event, created, as_table=True)._asdict()}
    return kind(**fields, **common).encode()


def _read_recording(name: str) -> list[Frame]:
    """Return the frames of the recorded server."""
    recorded = json.loads((_CAPTURES / f"{name}.json").read_text())["frames"]
    return [cut_frame(memoryview(bytes.fromhex(each["hex"])), 0) for each in recorded if each["dir"] == "S"]


class ReleaseServer(Script):
    """A listener with the answers of one release.

    Args:
        release: the answers.

    Attributes:
        user, password: the only login. The user is the bucket, as releases before 5.0 require it.
    """

    user, password = "beer", "secret"

    def __init__(self, release: Release):
        super().__init__(self._answer_frame, vbuckets=_VBUCKETS)
        self.release = release
        self.users = {self.user: self.password}
        self._logins: dict[Peer, ScramServer] = {}
        self._has_noop: set[Peer] = set()

    def find_requests(self, opcode) -> list[Frame]:
        """Return the requests of all connections with this opcode."""
        return [frame for peer in self.peers for frame in peer.requests if frame.opcode == opcode]

    def _answer_frame(self, peer, frame):
        if frame.magic != Magic.REQUEST or frame.opcode == Opcode.DCP_BUFFER_ACK:
            return b""
        name = Opcode(frame.opcode).name
        if refused := self.release.statuses.get(name):
            return reply(frame, Status[refused])
        answer = _ANSWERS.get(frame.opcode)
        return reply(frame, Status.UNKNOWN_COMMAND) if answer is None else answer(self, peer, frame)

    def _answer_hello(self, peer, frame):
        granted = {Feature[name] for name in self.release.features}
        return reply(frame, value=pack_features([each for each in unpack_features(frame.value) if each in granted]))

    def _answer_login(self, peer, frame):
        mechanism = frame.key.decode()
        if mechanism not in SCRAM:
            return answer_cram_md5(self, frame)
        if frame.opcode == Opcode.SASL_AUTH:
            keys = ScramKeys.derive(mechanism, self.password.encode(), b"salt", 4096)
            login = self._logins[peer] = ScramServer(mechanism, lambda name: keys, "server")
            return reply(frame, Status.AUTH_CONTINUE, value=login.challenge(frame.value))
        proof = self._logins[peer].verify(frame.value)
        return reply(frame, Status.AUTH_ERROR) if proof is None else reply(frame, value=proof)

    def _answer_stats(self, peer, frame):
        group = frame.key.decode().partition(" ")[0]
        stats = self.release.stats.get(group)
        if stats is None and group == "vbucket-seqno" and self.release.seqnos:
            stats = self._list_seqnos()
        return reply(frame, Status.KEY_ENOENT) if stats is None else stats_reply(frame, stats)

    def _answer_open(self, peer, frame):
        flags = int.from_bytes(frame.extras[4:], "big")
        if not flags & ~self.release.open_flags:
            return reply(frame)
        peer.transport.write(reply(frame, Status.EINVAL))
        peer.transport.close()
        return b""

    def _answer_control(self, peer, frame):
        key = frame.key.decode()
        if refused := self.release.control_statuses.get(key):
            return reply(frame, Status[refused])
        if (key, frame.value) == ("enable_noop", b"true"):
            self._has_noop.add(peer)
        return reply(frame, Status.SUCCESS if key in self.release.controls else Status.EINVAL)

    def _answer_stream(self, peer, frame):
        if self.release.noop_is_mandatory and peer not in self._has_noop:
            return reply(frame, Status.NOT_SUPPORTED)
        request = decode_frame(frame)
        assert isinstance(request, dcp.StreamReq)
        data = reply(frame, value=self._pack_log(request.vbucket))
        if request.start_seqno < self.release.seqnos[request.vbucket]:
            data += b"".join(self._make_stream(request.vbucket, request.opaque))
        if request.end_seqno < MAX_SEQNO:
            data += dcp.StreamEnd(vbucket=request.vbucket, opaque=request.opaque, reason=0).encode()
        return data

    def _make_stream(self, vbucket: int, opaque: int) -> Sequence[bytes]:
        if self.release.recording:
            frames = _read_recording(self.release.recording)
            return [
                join_frame(frame._replace(opaque=opaque))
                for frame in frames
                if frame.magic == Magic.REQUEST and frame.opcode in _STREAMED and frame.specific == vbucket
            ]
        return [_make_message(each, vbucket=vbucket, opaque=opaque) for each in self.release.messages]

    def _answer_tap(self, peer, frame):
        for each in _read_recording(self.release.recording):
            peer.transport.write(join_frame(each))
        peer.transport.close()
        return b""

    def _list_seqnos(self) -> dict[str, str]:
        """Return the statistics that all releases from 3.1 on have."""
        stats: dict[str, str] = {}
        for vbucket, seqno in self.release.seqnos.items():
            values = {"high_seqno": seqno, "abs_high_seqno": seqno, "purge_seqno": 0, "uuid": 11 + vbucket}
            stats |= {f"vb_{vbucket}:{name}": str(value) for name, value in values.items()}
        return stats

    @staticmethod
    def _pack_log(vbucket: int) -> bytes:
        return pack_failover_log([(11 + vbucket, 0)])


_ANSWERS = {
    Opcode.HELLO: ReleaseServer._answer_hello,
    Opcode.SASL_LIST_MECHS: lambda server, peer, frame: reply(frame, value=server.release.mechanisms.encode()),
    Opcode.SASL_AUTH: ReleaseServer._answer_login,
    Opcode.SASL_STEP: ReleaseServer._answer_login,
    Opcode.SELECT_BUCKET: lambda server, peer, frame: reply(frame),
    Opcode.GET_CLUSTER_CONFIG: lambda server, peer, frame: reply(
        frame, value=server.release.map.replace("PORT", str(server.port)).encode()
    ),
    Opcode.COLLECTIONS_GET_MANIFEST: lambda server, peer, frame: reply(frame, value=server.release.manifest.encode()),
    Opcode.VERSION: lambda server, peer, frame: reply(frame, value=server.release.name.split()[1].encode()),
    Opcode.STAT: ReleaseServer._answer_stats,
    Opcode.GET_ALL_VB_SEQNOS: lambda server, peer, frame: reply(
        frame, value=pack_vb_seqnos(server.release.seqnos.items())
    ),
    Opcode.GET_FAILOVER_LOG: lambda server, peer, frame: reply(frame, value=server._pack_log(frame.specific)),
    Opcode.DCP_GET_FAILOVER_LOG: lambda server, peer, frame: reply(frame, value=server._pack_log(frame.specific)),
    Opcode.DCP_OPEN: ReleaseServer._answer_open,
    Opcode.DCP_CONTROL: ReleaseServer._answer_control,
    Opcode.DCP_STREAM_REQ: ReleaseServer._answer_stream,
    Opcode.TAP_CONNECT: ReleaseServer._answer_tap,
}
"""Opcode -> its answer, unless the release refuses it. Any other opcode is unknown."""
