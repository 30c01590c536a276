"""STAT: its groups, and an answer that does not hold up other requests.

In: names and values of statistics. Out: what counts them.
"""
