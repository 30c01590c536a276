"""The pages: responses of paths, the privileges that they need, and the changes that they make.

In: paths, forms, documents. Out: connections (protocol).
"""
