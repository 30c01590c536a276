"""The orchestrator of several nodes: maps, placement, moves and failover, as ns_server drives the data service.

In: decisions about vbuckets and maps. Out: streams from node to node (replication), and storing changes (node).
"""
