"""The rebalance of a cluster, which an administrator requests at one of its nodes.

In: its checks, its progress, and the task that drives all nodes of the cluster with the orchestrator of the client.
Out: how vbuckets move, and where replicas belong (client.replication). Nodes that join and leave (membership).
"""
