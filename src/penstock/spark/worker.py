"""What a Python process of Spark's does once, before its first work for us.

Spark collects garbage in a worker after every task, which looks at every object there is: of what pyspark, pyarrow and we have imported that
takes 45 ms, longer than a short task, and the next task waits for it. None of those will ever be garbage, so they are put out of its sight.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle_in() -> None:
    """Have the collector disregard what is there now; to be called when all is imported. The first call counts."""
    gc.collect()
    gc.freeze()
