"""The stream type: a log of messages with offsets, its consumer groups and its producers. Pure: time is an argument."""

import os

# Snapshots are written by a forked child. An allocator with threads of its own could wait there for ever for a thread
# that was not forked. Arrow reads this variable at its first import.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
