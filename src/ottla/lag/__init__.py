"""lag: how far consumer groups are behind, in records and in time, and what that says about them.

Knows: admin, client, model. `reading.py` reads offsets and timestamps from a cluster. `burrow.py` evaluates a history
of commits without I/O, by the rules of Burrow. The monitor, the console and the command line show the same figures.
"""
