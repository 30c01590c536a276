"""A bucket's state for TAP: checkpoints, hops, named clients.

In: what stays when no TAP consumer is connected. Out: connections.
"""
