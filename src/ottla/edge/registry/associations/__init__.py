"""Associations: which subject has the schemas of a topic's keys or values.

`table.py` has those that exist, `requests.py` reads requests, `changes.py` decides about them, and `api.py` has the
operations. All but `api.py` are pure.
"""
