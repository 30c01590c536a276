"""Sub-document commands on one document: they change parts of JSON text and of extended attributes in place.

In: paths, edits, rules. Out: vbuckets, the wire. Parts that a command does not name stay the same, byte for byte.
Source: memcached SubDocument API; Couchbase Server 7.6.
"""
