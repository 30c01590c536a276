"""The change log in files: sealed segments, log files, the inventory of a directory.

In: all that calls the operating system. Out: what a damaged directory needs (repair).
"""
