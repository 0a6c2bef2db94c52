"""Every click into a table; slow ones into the stream `alerts`."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(comment="Every click, once.")
def clicks() -> DataFrame:
    columns = "id STRING, at TIMESTAMP, page STRING, ms INT"  # fields of the JSON entries
    return spark.readStream.format("penstock").schema(columns).option("stream", "clicks").load()


dp.create_sink("alerts", "penstock", {"stream": "alerts"})


@dp.append_flow(target="alerts")
def find_slow_clicks() -> DataFrame:
    slow = spark.readStream.table("clicks").where("ms >= 3000")
    return slow.selectExpr("page AS tag", "id", "page", "ms")
