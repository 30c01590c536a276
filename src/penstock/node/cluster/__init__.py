"""The cluster map: nodes, places of vbuckets, releases.

In: what clients learn about nodes. Out: how a connection gets it (session).
"""
