"""Registers `format("penstock")`: Spark imports modules with this kind of name and asks them for `DefaultSource`."""

from penstock.spark.data_source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
