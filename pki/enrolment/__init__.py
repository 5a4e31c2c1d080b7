"""The client side of the online authority: enrolling, renewing, and following changes of trust."""
