"""The shuffle worker: takes what maps push, keeps it by partition, and serves it to readers."""
