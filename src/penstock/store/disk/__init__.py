"""The change log in files: sealed segments, log files, the inventory of a directory.

In: every call of the operating system. Out: the repair of a damaged directory (recovery).
"""
