"""What has no subject of its own and everything stands on.

Errors, files, the home, tasks, logging, metrics, tracing.
"""
