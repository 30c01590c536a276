"""Consumer of UPR and of the UPR draft, for tests. The draft has other messages in the same order."""

from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.layout import decode_frame
from tests.node.wire_client import WireClient


class UprClient(WireClient):
    """Consumer of one connection.

    Attributes:
        dialect: UPR or UPR_DRAFT.
    """

    def __init__(self, node, dialect, **options):
        super().__init__(node, **options)
        self.dialect = dialect

    def read_messages(self, count=1):
        """Return the next messages."""
        return [decode_frame(self.receive(), self.dialect) for _ in range(count)]


def make_stream_request(form, vbucket=0, start=0, end=MAX_SEQNO, **fields):
    """Make a stream request of a dialect: `form` is the class of its message."""
    return form(vbucket=vbucket, start_seqno=start, end_seqno=end, **fields)
