"""The consumer's end of a UPR connection, for tests; and of the draft's, which has other messages in the same order."""

from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.layout import decode_frame
from tests.node.wire_client import WireClient


class UprClient(WireClient):
    """dialect: UPR or its draft."""

    def __init__(self, node, dialect, **options):
        super().__init__(node, **options)
        self.dialect = dialect

    def read_messages(self, count=1):
        """Return the next messages."""
        return [decode_frame(self.receive(), self.dialect) for _ in range(count)]


def stream_request(form, vbucket=0, start=0, end=MAX_SEQNO, **fields):
    """Return a request, as the form that it has in one of the two dialects."""
    return form(vbucket=vbucket, start_seqno=start, end_seqno=end, **fields)
