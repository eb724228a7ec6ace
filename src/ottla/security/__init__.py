"""Who a client is, and what it may do: principals, SASL, ACLs and quotas. Pure, apart from the contexts of TLS."""
