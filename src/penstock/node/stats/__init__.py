"""STAT: its groups, and replies in slices that do not delay other requests.

In: names and values of statistics. Out: the counters themselves.
"""
