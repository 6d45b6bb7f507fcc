"""Which rank is slower than the others: own time of each rank (own_time.py), compared by rank 0 (judge.py), through the
attempt's store (exchange.py). No collective, no wait of the host for the device (docs/adr/0019).
"""
