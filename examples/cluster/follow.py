"""Bring a lake up to date with a bucket, on whatever cluster spark-submit names.

spark-submit --master spark://HOST:7077 --py-files penstock.zip follow.py couchbase://HOST/BUCKET /shared/lake
"""

import sys

from pyspark.sql import SparkSession

from penstock.spark.pipeline.definition.definition import of_one
from penstock.spark.pipeline.run.pipeline_run import run

url, lake = sys.argv[1:]
spark = SparkSession.Builder().appName("penstock").getOrCreate()
# A task for each core of the cluster: the default is made for the machine that the driver is on.
pipeline = of_one(lake, url=url, max_partitions=spark.sparkContext.defaultParallelism)
(progress,) = run(pipeline, available_now=True, spark=spark)
print(f"{progress.rows} rows written", flush=True)
