"""Connections of the operating system: accepting, encrypting, and sharing them among addresses.

In: sockets and their limits. Out: requests.
"""
