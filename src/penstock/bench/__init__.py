"""`penstock bench`: ours and a real redis-server under the same load, in one run, alternating; ratios, not boasts."""
