"""The content of pages as JSON: a function for each page or part of one. Each is also a live stream (live.py)."""
