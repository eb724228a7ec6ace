"""zookeeper: the metadata store of a cluster, on kazoo."""
