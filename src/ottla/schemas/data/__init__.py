"""data: records whose bytes follow a schema of the registry, to and from JSON values. Knows: schemas, google.protobuf.

`framing` has the bytes before the data (Confluent's wire format); `codec.codec_for` returns the codec of a schema.
Pure: no I/O, no threads; the texts of references are passed in. The cost of hostile data and schemas is limited.
"""
