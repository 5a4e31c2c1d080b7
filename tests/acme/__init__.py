"""The ACME client against a real ACME server, Pebble, and the real Envoy: ``make test-acme``."""
