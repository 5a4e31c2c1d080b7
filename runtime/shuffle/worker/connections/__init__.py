"""The data channel's listener, and one thread for each connection: pushes, fetches, and fetches that follow."""
