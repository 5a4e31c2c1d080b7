"""The ShuffleManager: which workers there are, who may use them, and what becomes of a job's data."""
