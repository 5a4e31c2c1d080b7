"""What every process of a cluster does: addresses, child processes, logs, identity renewal, finding the leader."""
