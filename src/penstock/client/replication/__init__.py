"""The orchestrator: replication between nodes, moves of vbuckets and failover, as ns_server drives them.

In: relays of frames between nodes, decisions about vbuckets and maps. Out: storing changes, which the target node does.
"""
