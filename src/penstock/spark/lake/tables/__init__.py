"""The directory of a lake: its tables in all formats, their columns, manifests of plain files, the lock.

Belongs here: where files lie, how a commit is made. Does not belong here: the meaning of rows.
"""

ORDER = ("iceberg",)
