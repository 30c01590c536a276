"""Limits of log lines that a peer can cause."""

import logging

from penstock.node.transport.log_limit import LogLimit


def test_limited_log_counts_the_omitted_lines(caplog):
    now = 100.0
    limit = LogLimit(logging.getLogger("penstock.node"), lambda: now)
    for number in range(5):
        limit.warning(f"garbage {number}")
    now += 59.0
    limit.warning("garbage 5")
    now += 1.0
    limit.warning("garbage 6")
    limit.warning("garbage 7")
    assert caplog.messages == ["garbage 0", "garbage 6 (5 more like this since the last line)"]
