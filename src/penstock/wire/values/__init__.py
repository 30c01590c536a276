"""Parts of keys and values: collection ids, JSON, compression, and the texts of SCRAM.

Belongs here: functions from bytes to bytes. Does not: frames.
"""
