"""The documents of a vbucket by key: reads, writes, locks, expiry, versions from elsewhere.

In: what a key-value command does to the bucket. Out: paths within a document (subdoc).
"""
