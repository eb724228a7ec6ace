"""json_schema: JSON Schema, drafts 4, 6, 7, 2019-09 and 2020-12. Knows: schemas.schema, model.

The text is parsed (`text`), and all schemas in it are checked and their references resolved (`documents`, `validity`,
`drafts`, `patterns`). Never fetches anything.
"""
