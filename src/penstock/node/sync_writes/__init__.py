"""The synchronous writes of a bucket: prepares that wait for acknowledgements, and the requests that wait for them.

In: the edge around the monitors of the store: timers, retries, answers. Out: connections and messages.
"""
