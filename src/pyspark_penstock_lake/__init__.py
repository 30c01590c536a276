"""How Spark finds `format("penstock-lake")` by itself; it takes one format from a module, so this is another.

A module that cannot be imported would end Spark's search, so where the table format's library is missing this one is
empty.
"""

from importlib.util import find_spec

if find_spec("deltalake") is not None:
    from penstock.spark.runtime.lake_source import LakeSource as DefaultSource

    __all__ = ["DefaultSource"]
