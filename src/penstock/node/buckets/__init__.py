"""The buckets of a node: opened, kept on disk, compacted, maintained, deleted.

In: a bucket and all that works on it by itself. Out: requests of clients.
"""
