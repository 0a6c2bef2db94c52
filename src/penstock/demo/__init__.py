"""The demo's parts: a project for Spark, producers of clicks, the check of what came out against what went in, and a picture."""
