"""quarantine: the rejected records of pipelines: their causes, samples, and how they are sent again.

Knows: admin, client, model. `tables.py` reads the quarantine tables that pipelines write, with deltalake, which is part
of the extra spark. `redrive.py` sends records to their topics again. The console and the command line share both; they
read the tables in a pipeline's storage and no file of its declaration, because a pipeline need not run to be repaired.
"""
