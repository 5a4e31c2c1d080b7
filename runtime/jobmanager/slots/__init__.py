"""The ResourceManager: TaskManagers, slots, placement."""
