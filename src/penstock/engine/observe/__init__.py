"""What operators look at: counters, the slow log, the latency monitor, MONITOR."""
