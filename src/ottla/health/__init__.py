"""health: what is wrong with a cluster, and what to do about it. Knows: lag, admin, client, model, security, wire.

`picture.py` reads the state of a cluster once. Each check is a pure function of that picture and returns findings;
`evaluation.py` runs them all. `ottla doctor`, the first page of the console and the monitor use the same checks.
"""
