"""The identities of processes on disk: directories and databases of them, and when each is due for renewal."""
