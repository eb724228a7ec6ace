"""records: what the pages of messages do with records, without HTTP.

Knows: client, schemas, model. `expression.py` is the language of searches, `decoding.py` shows keys and values,
`scan.py` searches a topic within a budget, `rows.py` makes the rows of pages and downloads, `outgoing.py` makes the
records that people produce with a form.
"""
