"""Live metrics for Prometheus: of each rank (rank), of the run as the control pod sees it (goodput), both by one small
server (serve). Names and help are in holdfast/metrics.py, which dashboard and alerts share.
"""
