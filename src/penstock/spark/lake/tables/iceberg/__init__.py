"""Iceberg tables of a lake, and the catalog that holds them."""
