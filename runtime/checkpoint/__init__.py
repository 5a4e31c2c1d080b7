"""What a streaming job has committed, where its checkpoint is, and how it goes on from it."""
