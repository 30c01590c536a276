"""The client: connects to nodes, reads and writes documents, and streams changes.

`bucket` is the asyncio interface for users, `blocking` the interface without an event loop. Each package imports only
from the packages before it. Code of the node or of Spark does not belong here.
"""

ORDER = (
    "tracing",
    "login",
    "discovery",
    "filters",
    "connect",
    "topology",
    "feeds",
    "signals",
    "tap",
    "streams",
    "documents",
    "positions",
    "groups",
    "consumers",
    "dumps",
    "relays",
    "replication",
    "cluster",
    "dashboard",
    "xdcr",
)
