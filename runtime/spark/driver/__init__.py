"""The driver of a job: its agent, its JVM and Python, and the link to the JobMaster."""
