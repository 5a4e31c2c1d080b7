"""Content-addressed artifacts over HTTPS with mutual TLS."""
