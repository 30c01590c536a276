"""`penstock top`: a live view of a bucket.

In: samples of statistics, their rates, the screen and its keys. Out: statistics of single vbuckets and streams.
"""

from penstock.cli.top import top_command

__all__ = ["top_command"]
