"""``sluice run``: one process of a cluster in the foreground."""
