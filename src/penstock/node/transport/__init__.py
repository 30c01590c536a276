"""Connections as the operating system has them: accepted, encrypted, shared out by address.

In: sockets and their limits. Out: requests.
"""
