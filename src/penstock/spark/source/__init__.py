"""`format("dcp")`: reading a bucket's changes with Spark."""
