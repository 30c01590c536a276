"""Bring a lake up to date with a bucket, on the cluster that spark-submit names.

spark-submit --master spark://HOST:7077 --py-files penstock.zip follow.py couchbase://HOST/BUCKET /shared/lake
"""

import sys

from pyspark.sql import SparkSession

from penstock.spark import Pipeline

url, lake = sys.argv[1:]
spark = SparkSession.Builder().appName("penstock").getOrCreate()
# A task for each core of the cluster: the default is made for the machine that the driver is on.
pipeline = Pipeline.of_bucket(lake, url, max_partitions=spark.sparkContext.defaultParallelism)
(progress,) = pipeline.run(available_now=True, spark=spark)
print(f"{progress.rows} rows written", flush=True)
