"""groups: consumer groups of both protocols and their offsets, on the log of ``__consumer_offsets``."""
