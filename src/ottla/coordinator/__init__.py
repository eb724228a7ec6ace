"""coordinator: groups and their offsets on the log of ``__consumer_offsets``, transactions on ``__transaction_state``.

Knows: model, env, wire, replica (to append and to read). Never: sockets, the metadata store, how a request came in.
A handler turns (request, state, now) into (records, replies); replaying a record is the only writer of what is durable.
"""
