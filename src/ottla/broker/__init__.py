"""broker: the composition root and the APIs. Knows: every room of its wing.

Never: what the edge wing does; it is a client like any other.
"""
