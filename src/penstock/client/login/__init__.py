"""The client's side of a login: credentials, their sources, and the messages of each SASL mechanism.

The only I/O is that of sources: files, commands and providers.
In: user names, passwords and mechanisms. Out: connections, and the order of their requests.
"""
