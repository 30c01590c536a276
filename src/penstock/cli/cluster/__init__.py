"""The commands of an orchestrator: replicate, move and failover.

In: their options and their output. Out: the steps, which penstock.client.replication takes.
"""
