"""A month of schema drift in about a minute: `python -m tests.drift`.

Each day changes the documents of a bucket, a pipeline keeps typed tables, and programs that do not know Penstock read
them: DuckDB, Polars and delta-rs. Their rows are compared with the documents of the bucket.
"""
