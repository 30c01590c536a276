"""Delta's MERGE INTO in Spark, for the benchmark typed_table: `python merge_into.py JARS TABLE DDL`.

It runs in a Python of its own, because the newest delta-spark may need an older pyspark than Penstock. For each line
with a Parquet file of keys and JSON values, it merges the file into the table, and prints a line.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "3g",
}


def main(jars: str, table: str, ddl: str) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.jars", jars).config(map=SETTINGS).getOrCreate()
    print("ready", flush=True)
    for line in sys.stdin:
        rows = f"SELECT CAST(key AS STRING) AS _key, from_json(CAST(value AS STRING), '{ddl}') AS d"
        source, target = f"SELECT _key, d.* FROM ({rows} FROM parquet.`{line.strip()}`)", f"delta.`{table}`"
        if Path(table).exists():
            spark.sql(
                f"MERGE INTO {target} AS t USING ({source}) AS s ON t._key = s._key "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
        else:
            spark.sql(f"CREATE TABLE {target} USING DELTA AS {source}")
        print("merged", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
