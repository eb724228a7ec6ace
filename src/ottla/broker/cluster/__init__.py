"""cluster: this broker as a member of the cluster, the controller, and the APIs of topics, settings and brokers."""
