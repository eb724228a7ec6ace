"""edge: the HTTP services beside the brokers (schema registry, REST proxy), and what all of them share."""
