"""A submission for Spark's own cluster managers, YARN and Kubernetes, with our TLS inside."""
