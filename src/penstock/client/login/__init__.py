"""The client's side of a login: credentials, and the messages of each SASL mechanism. No I/O but reading files.

In: user names, passwords and mechanisms. Out: connections, and the order of their requests.
"""
