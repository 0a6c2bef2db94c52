"""`penstock bench`: ours and a real redis-server under the same load, alternating in one
run; the results are ratios.
"""
