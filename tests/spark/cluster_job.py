"""A program for a cluster: copies a stream to Parquet once; the test that starts it breaks things.

python cluster_job.py MASTER DIRECTORY OPTIONS_AS_JSON
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession


def main(master: str, directory: str, options: str) -> None:
    """Run the query to its end."""
    session = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", f"{directory}/scratch")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    frame = session.readStream.format("lavinmq").options(**json.loads(options)).load()
    writer = frame.writeStream.format("parquet").option("path", f"{directory}/data")
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
