"""Reading a bucket's changes with `format("dcp")`: options, offsets, planning, partitions.

Belongs here: decisions and tasks of a Spark read.
Does not belong here: writing to buckets, tables of a lake.
"""

ORDER = ("limits",)
