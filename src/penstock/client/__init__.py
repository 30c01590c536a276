"""The consumer: connects, reads and writes documents, follows changes; an asyncio core and a blocking front.

`bucket` is the front that users hold, `blocking` the same without an event loop. The work is in the packages, and each
of them knows those before it. Nothing here knows a node's inside or Spark.
"""

ORDER = ("connect", "topology", "feeds", "tap", "streams", "documents")
