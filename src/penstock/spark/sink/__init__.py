"""`df.write.format("dcp")`: rows of a DataFrame become documents of a bucket."""
