"""The log: the port, Kafka, the embedded broker, connection, topics and readers."""
