"""From the stream `clicks` into a table, and slow clicks back into a stream."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

spark = SparkSession.active()


@dp.table(comment="Every click, once.")
def clicks() -> DataFrame:
    # No option names the server: `penstock run` tells Spark which one it is.
    messages = spark.readStream.format("penstock").option("stream", "clicks").option("text", "true").load()
    # A message has: stream, offset, time (when it was written), tag, entry. Here the entry is JSON.
    click = from_json(col("entry"), "at TIMESTAMP, page STRING, user INT, ms INT").alias("click")
    return messages.select("offset", click).select("offset", "click.*")


# A sink writes to another stream; follow it with: penstock tail slow_clicks
dp.create_sink("slow_clicks", "penstock", {"stream": "slow_clicks"})


@dp.append_flow(target="slow_clicks")
def find_slow_clicks() -> DataFrame:
    # The sink needs a column `entry`, and a column `tag` is optional.
    slow = spark.readStream.table("clicks").where("ms > 1500")
    return slow.selectExpr("page AS tag", "to_json(struct(at, page, user, ms)) AS entry")
