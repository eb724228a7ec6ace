"""avro: Avro schemas with the verdicts and texts of Java Avro 1.12 and Confluent's registry. Knows: schemas.schema.

The parser is our own, because the libraries for Python differ from Java in what they accept, in the text that they
print and in their rules of compatibility. Pure: no I/O.
"""

from ottla.schemas.avro.avro_schema import AvroSchema, parse

__all__ = ["AvroSchema", "parse"]
