"""Producers: messages of many threads or tasks, gathered into few writes, each of them exactly once."""
