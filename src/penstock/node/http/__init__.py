"""Management over HTTP: what clients look up about nodes and buckets, and change, with the paths of Couchbase.

In: the server of a node's HTTP ports. Out: key-value requests.
"""

__all__ = ["ORDER"]

ORDER = ("protocol", "pages")
"""The packages: each knows those before it."""
