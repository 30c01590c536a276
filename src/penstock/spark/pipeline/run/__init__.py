"""The run of a pipeline: queries from buckets to changelogs, dependents behind them, progress and metrics.

Belongs here: everything that lives as long as a run, and the plan of one.
"""
