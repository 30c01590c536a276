"""The nodes of a bucket: a connection to each node, its vbuckets, and their statistics, seqnos and failover logs.

In: code that needs the cluster map. Out: documents and change streams.
"""
