"""The cluster that runs PySpark pipelines."""
