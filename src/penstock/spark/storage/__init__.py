"""Where a lake's files lie: directories of this machine, and object stores such as S3.

Belongs here: places, their listings, conditional puts, Parquet files of objects, scratch files, the lease of a lake.
Does not belong here: the meaning of any file. A local place stays a `pathlib.Path` with all its guarantees.
"""
