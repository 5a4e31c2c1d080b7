"""``sluice submit``, ``jobs``, ``savepoints``, ``shuffle``, ``connect``: work on a cluster through the gateway."""
