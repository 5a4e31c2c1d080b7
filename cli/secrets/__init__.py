"""``sluice secret``: secrets of jobs, through the gateway."""
