"""The remote shuffle service: what a Spark job shuffles, kept outside its executors."""
