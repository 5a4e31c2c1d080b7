"""``sluice doctor``: check the prerequisites of this machine."""
