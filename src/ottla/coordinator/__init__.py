"""coordinator: groups and their offsets on the log of ``__consumer_offsets``, transactions on ``__transaction_state``.

Imports: model, env, wire, replica (to append and to read). Never touches: sockets, the metadata store, connections.
A handler turns (request, state, now) into (records, replies); only the replay of a record changes durable state.
"""
