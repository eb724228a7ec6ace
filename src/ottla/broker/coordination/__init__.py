"""coordination: connects the coordinators to the broker and to the coordinators of other brokers."""
