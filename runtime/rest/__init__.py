"""The unauthenticated REST endpoint; only the gateway reaches it."""
