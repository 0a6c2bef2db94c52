"""Spark looks for modules of this kind of name and asks them for `DefaultSource`: so `format("penstock")` needs no registration."""

from penstock.spark.data_source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
