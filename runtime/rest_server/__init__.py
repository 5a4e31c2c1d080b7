"""REST as it is served: the list of routes, the listener, and the switch between leader and standby."""
