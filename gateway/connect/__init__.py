"""Spark Connect through the gateway: each principal reaches a session of its own, as itself, and nothing else."""
