"""coordinators: what the coordinators of groups and of transactions share: shards on a log, operations, late replies.

A handler turns (request, state, now) into (records, replies); only the replay of a record changes durable state.
"""
