"""The distributions, and the program as it is installed from one, away from this tree (`make test-wheel`)."""
