"""A trained model as others serve it.  `serving_graph` builds it, `write` writes it, `report` says what it is worth."""
