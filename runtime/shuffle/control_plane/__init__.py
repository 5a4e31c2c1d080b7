"""What JobManagers, ShuffleManagers and ShuffleWorkers say to each other over RPC, and a JobManager's link to it."""
