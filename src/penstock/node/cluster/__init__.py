"""The cluster map: nodes, places of vbuckets, releases.

In: the documents from which clients learn the nodes. Out: how a connection receives them (session).
"""
