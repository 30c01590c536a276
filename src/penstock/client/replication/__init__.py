"""Replication between nodes: relays fill the replicas of a node, as ns_server drives them.

In: the streams to one node, and requests to it. Out: where replicas belong (cluster), and storing changes (node).
"""
