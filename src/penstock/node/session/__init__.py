"""Sessions: what handlers of requests know of a client's connection, and how they answer.

In: state, keys, values and replies of one client. Out: sockets (server), single commands.
"""
