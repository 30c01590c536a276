"""The run of a pipeline: queries from buckets to changelogs, their dependents, progress and metrics.

Belongs here: everything that lives as long as a run, and the plan of a run.
"""
