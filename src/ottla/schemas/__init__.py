"""schemas: parse, normalise and compare schemas in Avro, JSON Schema and Protobuf. Knows: model.

Pure: no I/O, no threads, no network. References between schemas are passed in as text. Never imports the registry,
which is one of its users, nor the broker's packages.
"""
