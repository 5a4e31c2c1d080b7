"""The cluster as containers; `make test-compose` runs these."""
