"""partitions: the partitions of this broker, the write at the end of a turn, and the copies of other leaders' logs.

`manager.py`, `partition.py`, `follower_fetchers.py` and the modules that they use know nothing of the metadata store;
`served_partitions.py` tells them their roles.
"""
