"""The pages: what a path answers, to whom, and what it changes.

In: paths, forms, documents. Out: connections (protocol).
"""
