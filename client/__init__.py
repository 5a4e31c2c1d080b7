"""The client of a cluster: REST calls through the gateway, with the user's credential."""
