"""cli: the `ottla` command. One file per noun; `cluster.py` alone knows the Kafka client.

Knows: a cluster over the wire, and for `ottla log` the files of ottla.log. Never: a running broker's insides.
Only click is imported before a verb runs, so that help and completion answer at once.
"""
