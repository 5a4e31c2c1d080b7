"""``sluice up``, ``status``, ``down``: the whole cluster on this machine."""
