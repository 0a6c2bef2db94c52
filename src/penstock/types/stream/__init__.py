"""The stream type: a log of messages with offsets, its consumer groups and its producers. Pure: time is an argument."""

import os

# A snapshot is written by a forked child, where an allocator with threads of its own may wait for ever for one that was
# not forked. Arrow reads this when it is first imported.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
