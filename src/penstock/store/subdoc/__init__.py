"""Sub-document commands on one document: JSON text and extended attributes, changed where they stand.

In: paths, edits, rules. Out: vbuckets, the wire. What a command does not name stays byte for byte as it was.
Source: memcached SubDocument API; Couchbase Server 7.6.
"""
