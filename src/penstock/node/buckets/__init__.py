"""The buckets of a node: opened, kept on disk, compacted, maintained, deleted.

In: a bucket and its background work. Out: requests of clients.
"""
