"""The Dispatcher: submissions, the register of jobs, queues, Spark Connect sessions."""
