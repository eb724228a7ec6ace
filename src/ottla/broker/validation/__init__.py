"""validation: topics with `schema.validation`: schema ids, and the topics for records without a known one."""
