"""Spark's processes: sessions, Java, Python workers, and the formats that a session knows.

Belongs here: how Spark starts and how it finds Penstock. Does not belong here: reading, writing, pipelines.
"""
