"""The node as a DCP consumer: it requests streams from its peer, and stores the peer's changes in its vbuckets.

The modules in order: control_negotiation, passive_stream, received_cache, received_parts, received_run, dcp_consumer,
consumer_commands, open_commands.
"""
