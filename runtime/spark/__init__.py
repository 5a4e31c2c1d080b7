"""Launching Spark drivers and executors, and the Scala plugin that ties Spark in."""
