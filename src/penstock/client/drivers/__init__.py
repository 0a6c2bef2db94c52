"""Drivers of a core: threads over one socket (sync.py), or tasks over one transport (aio.py)."""
