"""Change streams over sockets: connections to all nodes, reconnection after failures, and a pool of idle connections.

In: code that waits for a feed. Out: the meaning of messages (penstock.client.feeds).
"""
