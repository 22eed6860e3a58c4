"""Engines: what runs a search; torch for every model, CTranslate2 for the plain Transformer on CPUs."""
