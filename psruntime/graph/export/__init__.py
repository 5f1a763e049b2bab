"""A trained model as others serve it.  `serving_graph` builds it, `saved_model` writes it."""
