"""What the next leader has to know of jobs, in the HA storage."""
