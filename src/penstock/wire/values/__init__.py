"""Parts of keys and values: collection ids, JSON, compression, and the texts of SCRAM.

In: functions from bytes to bytes. Out: frames.
"""
