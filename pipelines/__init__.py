"""Bundled PySpark pipelines."""
