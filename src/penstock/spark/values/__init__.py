"""Values of documents: JSON as typed Arrow columns, its types as DDL, and which bytes are text.

Belongs here: conversions of values between bytes, Arrow and Spark types.
Does not belong here: change streams, tables of a lake, Spark sessions.
"""
