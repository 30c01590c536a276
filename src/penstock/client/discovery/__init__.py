"""The nodes of a cluster before there is a connection: endpoints, and the peer at the other end of a port.

In: facts that the client needs before the first request. Out: requests of the binary protocol.
"""
