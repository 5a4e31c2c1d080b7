"""One attempt of a job: the JobMaster, its driver, its executors, its checkpoints."""
