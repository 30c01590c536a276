"""Membership in a cluster: the document of all nodes, its exchange between them, and its effects on a node.

In: the nodes, buckets, collections and users that all nodes share. Out: how they agree (agreement), documents and keys.
"""
