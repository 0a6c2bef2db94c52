"""From the stream `clicks` into a table, and slow clicks back into a stream."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(comment="Every click, once.")
def clicks() -> DataFrame:
    # No option names the server: `penstock run` tells Spark which one it is.
    # A message has: stream, offset, time (when it was written), tag, entry. Other columns are fields of its JSON entry.
    # An entry that does not fit ends the run; .option("badEntries", "drop") would leave it out.
    columns = "offset BIGINT, at TIMESTAMP, page STRING, user INT, ms INT"
    return spark.readStream.format("penstock").schema(columns).option("stream", "clicks").load()


# A sink writes to another stream; follow it with: penstock tail slow_clicks
dp.create_sink("slow_clicks", "penstock", {"stream": "slow_clicks"})


@dp.append_flow(target="slow_clicks")
def find_slow_clicks() -> DataFrame:
    # Columns become the fields of a JSON entry; a column `tag` is optional, and `entry` would be the whole entry.
    slow = spark.readStream.table("clicks").where("ms > 1500")
    return slow.selectExpr("page AS tag", "at", "page", "user", "ms")
