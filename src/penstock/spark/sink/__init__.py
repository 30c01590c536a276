"""Writing to a bucket with `format("dcp")`: rows of a DataFrame become documents.

Belongs here: options, columns, requests, dead letters and tasks of a Spark write.
Does not belong here: the choice of changes to write; see dependents.kinds.xdcr_target.
"""
