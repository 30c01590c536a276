"""Durations of work and of commands, as histograms.

In: durations and clocks as numbers. Out: the work itself.
"""
