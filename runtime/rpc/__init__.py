"""Actors over gRPC with mutual TLS."""
