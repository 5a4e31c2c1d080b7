"""Serving REST: the list of routes, the listeners, and the switch between leader and standby."""
