"""The TAP state of a bucket: checkpoints, TTLs and named clients.

In: state that outlives the connections of TAP consumers. Out: connections.
"""
