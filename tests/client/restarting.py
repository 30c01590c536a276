"""A node that restarts in the order of a real node: its port, then the bucket, the cluster map and the vbuckets."""

from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from tests.client.old_server import OldServer, Release

_OF_VBUCKETS = (Opcode.GET_ALL_VB_SEQNOS, Opcode.GET_FAILOVER_LOG, Opcode.DCP_STREAM_REQ)

STAGES = {
    "no bucket": Release({Opcode.SELECT_BUCKET: Status.KEY_ENOENT}),
    "no bucket on this connection": Release({Opcode.GET_CLUSTER_CONFIG: Status.NO_BUCKET}),
    "map pending": Release({Opcode.GET_CLUSTER_CONFIG: Status.KEY_ENOENT}),
    "no map": Release({Opcode.GET_CLUSTER_CONFIG: b""}, stats={"vbucket": {}}),
    "warm-up": Release(dict.fromkeys(_OF_VBUCKETS, Status.ETMPFAIL)),
    "no vbuckets": Release(dict.fromkeys(_OF_VBUCKETS, Status.NOT_MY_VBUCKET)),
}
"""Answers of a node in each stage of its start. Source: observed with Couchbase 3.1.6 and 7.2.8."""

SERVING = Release()


class RestartingServer(OldServer):
    """A proxy in front of a node that answers as if the node restarted.

    Attributes:
        met: stage of the last restart -> number of requests that were answered in it.
    """

    def __init__(self, node, release=SERVING):
        super().__init__(node, release)
        self.met = {}

    def restart(self, stage="no bucket"):
        """Close all connections, and answer as in this stage. Each stage ends after its first answer."""

        async def drop():
            self.met = dict.fromkeys(STAGES, 0)
            self.release = STAGES[stage]
            for pair in self._pairs:
                pair.close()

        self._thread.run(drop())

    def answer(self, frame):
        names = [name for name, release in STAGES.items() if release is self.release]
        answer = super().answer(frame)
        if answer is not None and names and self.met:
            (name,) = names
            self.met[name] += 1
            self.release = [*STAGES.values(), SERVING][[*STAGES].index(name) + 1]
        return answer

    @property
    def has_restarted(self):
        return bool(self.met) and all(self.met.values())


class InterruptingServer(OldServer):
    """A proxy in front of a node that calls a function before the node gets a stream request.

    Attributes:
        interrupt: called once, before the next stream request; None afterwards.
    """

    def __init__(self, node):
        super().__init__(node, SERVING)
        self.interrupt = None

    def answer(self, frame):
        if frame.opcode == Opcode.DCP_STREAM_REQ and self.interrupt is not None:
            self.interrupt()
            self.interrupt = None
        return super().answer(frame)
