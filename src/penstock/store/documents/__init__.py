"""The documents of a vbucket by key: reads, writes, locks, expiry, versions from other nodes.

In: the effects of key-value commands on a bucket. Out: paths within a document (subdoc).
"""
