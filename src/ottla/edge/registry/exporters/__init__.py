"""Exporters: copy the schemas of this registry to another one ("schema linking").

`definition.py` has what an exporter copies, and what its topics store; `destination.py` sends versions to the other
registry; `running.py` runs the exporters on the leader; `api.py` has their operations.
"""
