"""``sluice gateway``, ``policy``, ``token``, ``user``, ``session``, ``login``, ``audit-log``: access to a cluster."""
