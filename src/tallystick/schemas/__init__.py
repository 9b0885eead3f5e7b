"""Columns of records with schemas: Confluent's wire format, a registry, and Avro and JSON to and from Arrow.

`model` says what a field is and where its schema is registered, and `registry` asks for schemas. `avro` and
`json_schema` convert columns, which have `column_codec` in common, and `columns` chooses between them. No
module here knows Spark or Kafka.
"""
