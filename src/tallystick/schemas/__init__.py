"""Columns of records with schemas: Confluent's wire format, a registry, and Avro to and from Arrow.

`model` says what a field is and where its schema is registered, `registry` asks for schemas, `avro` converts
columns, and `columns` puts them together for one field of a query. Nothing here knows Spark or Kafka.
"""
