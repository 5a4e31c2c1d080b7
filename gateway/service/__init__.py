"""The auth service and the relay as processes: HTTP interfaces and composition."""
