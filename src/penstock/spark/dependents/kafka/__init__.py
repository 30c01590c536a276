"""The parts of a Kafka sink: events and their envelope, names of topics, the connection, the producer, positions.

Belongs here: everything that only the Kafka sink needs. Does not belong here: the sink itself, which is a kind.
"""
