"""Commands for several nodes: replicate, move and failover of vbuckets, and XDCR between buckets.

In: their options and their output. Out: the steps, which penstock.client.replication and penstock.client.xdcr take.
"""
