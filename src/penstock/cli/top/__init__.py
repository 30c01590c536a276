"""`penstock top` and `penstock dashboard`: live views of a bucket, on a terminal and in a browser.

In: samples of statistics, their rates, the screen and its keys. Out: statistics of single vbuckets and streams.
"""

from penstock.cli.top import dashboard_command, top_command

__all__ = ["dashboard_command", "top_command"]
