"""Management over HTTP, with the paths of Couchbase: clients look up nodes and buckets, and change buckets.

The dashboard is a page for people, under a path of its own.

In: the server of a node's HTTP ports. Out: key-value requests.
"""

__all__ = ["ORDER"]

ORDER = ("protocol", "pages", "dashboard")
"""The packages: each knows those before it."""
