"""Streams and keys as Spark sources and sinks: `format("penstock")`. docs/spark.md is the manual."""
