"""What a worker keeps: memory, disks, and which map outputs can be read."""
