"""schemas.protobuf: Protobuf schemas, parsed in Python. Knows: schemas.schema, model, google.protobuf.

    text ──parser──► model ──linker──► FileDescriptorProto ──► google.protobuf's DescriptorPool, the last check
    base64 ──from_descriptor──► model                │
                                  │                  └─ types resolved to full names, which normalisation and
                                  ├─ printer: canonical text, normalised text
                                  └─ differences: compatibility          differences use

`docs/reference/schema-compatibility.md` says where Confluent's registry behaves differently, and why.
"""

from ottla.schemas.protobuf.protobuf_schema import ProtobufSchema, parse

__all__ = ["ProtobufSchema", "parse"]
