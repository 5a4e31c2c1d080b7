"""``sluice audit``: examine a live cluster from outside."""
