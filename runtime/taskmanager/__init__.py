"""Task executor, slots and executor processes."""
