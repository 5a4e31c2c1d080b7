"""``sluice gateway``, ``policy``, ``token``, ``user``, ``session``, ``login``, ``audit-log``: who comes in."""
