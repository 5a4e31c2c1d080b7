"""The gateway's signed assertions: how they are made and verified, and how long a stream may rely on one."""
