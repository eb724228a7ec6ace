"""kafka: the commands of Apache Kafka, such as `kafka-topics`, with its options and output, on our own commands."""
