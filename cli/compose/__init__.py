"""``sluice compose``: the cluster as containers."""
