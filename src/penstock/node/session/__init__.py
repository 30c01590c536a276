"""Sessions: the state of a client's connection as request handlers see it, and the encoding of replies.

In: state, keys, values and replies of one client. Out: sockets (server), single commands.
"""
