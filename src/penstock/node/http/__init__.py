"""Management over HTTP: what clients look up about nodes and buckets, and change, with the paths of Couchbase.

In: pages, and a strict HTTP/1.1 front. Out: key-value requests.
"""
