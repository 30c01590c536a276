"""The dashboard of a bucket: its page, the document that the page shows, and a producer of it by statistics.

In: files of the page, the document's form, its figures, live tails, the site that serves it. Out: the node's own
producer.
"""
