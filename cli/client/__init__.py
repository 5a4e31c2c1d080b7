"""The client of REST that the verbs share."""
