"""cli: the `ottla` command. Each command has a file; `cluster.py` is the only one that uses the Kafka client.

May use a cluster through its protocol and, for `ottla log`, the files of a log; never the state of a running broker.
Only click is imported before a command runs, so that help and completion answer at once.
"""
