"""registry: the schema registry, an HTTP service whose state is the topic `_schemas`. Knows: schemas, web, client.

    POST /subjects/orders-value/versions
      api.py ─► service.py: is this instance the leader? no ─► forwarding.py sends the request to the leader
                  │ yes
                  ▼
                changes.py decides from state.py: records or an error          pure
                  ▼
                store.py appends the records in a transaction, which fences every earlier leader
                  ▼
                the reader of `_schemas` applies them to state.py, on every instance; then the client gets its answer

Record format, routes and error codes are those of Confluent's registry, so that either can continue with the topic of
the other. election.py chooses the leader through a consumer group. The leader also copies schemas to other registries
(exporters/running.py). Never imports the broker's packages.
"""
