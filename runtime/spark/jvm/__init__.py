"""Spark's JVMs: command lines, configuration, packages, class archives."""
