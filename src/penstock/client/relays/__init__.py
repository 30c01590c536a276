"""Relays: pairs of connections that pass changes from one node to another, as ns_server's do.

In: handshakes of both sides, frames, the translation of UPR into DCP. Out: which vbuckets go where (`replication`).
"""
