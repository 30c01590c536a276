"""A client of Spark Connect: `connect_app.py SERVER URL LAKE OTHER_LAKE`; prints its results as JSON.

It first uses the formats that the server finds by itself, and then the formats that this process registers.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark import register
from penstock.spark.pipeline.definition.definition import define_bucket_pipeline
from penstock.spark.pipeline.run.pipeline_run import run_pipeline


def main(server: str, url: str, lake: str, other: str) -> None:
    spark = SparkSession.Builder().remote(server).getOrCreate()
    changes = spark.read.format("dcp").option("url", url)
    print_result("found", sorted(row.key.decode() for row in changes.load().select("key").collect()))

    stream = spark.readStream.format("dcp").option("url", url).load()
    sink = stream.writeStream.format("penstock-changelog").option("path", lake).option("vbuckets", 16)
    query = sink.option("checkpointLocation", (Path(lake) / "_checkpoint").as_uri()).trigger(availableNow=True).start()
    print_result("ended", query.awaitTermination(120))

    register(spark)
    print_result("registered", changes.load().count())
    (progress,) = run_pipeline(define_bucket_pipeline(other, url=url), available_now=True, spark=spark)
    print_result("run", progress.rows)
    spark.stop()


def print_result(name: str, value: object) -> None:
    print(json.dumps({name: value}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
