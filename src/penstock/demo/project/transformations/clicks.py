"""Every click into a table; slow ones into the stream `alerts`."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

spark = SparkSession.active()


@dp.table(comment="Every click, once.")
def clicks() -> DataFrame:
    messages = spark.readStream.format("penstock").option("stream", "clicks").option("text", "true").load()
    click = from_json(col("entry"), "id STRING, at TIMESTAMP, page STRING, ms INT").alias("click")
    return messages.select(click).select("click.*")


dp.create_sink("alerts", "penstock", {"stream": "alerts"})


@dp.append_flow(target="alerts")
def find_slow_clicks() -> DataFrame:
    slow = spark.readStream.table("clicks").where("ms >= 3000")
    return slow.selectExpr("page AS tag", "to_json(struct(id, page, ms)) AS entry")
