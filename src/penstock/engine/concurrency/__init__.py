"""Commands that run elsewhere or later: key locks, worker threads, LAZY, and ONCE."""
