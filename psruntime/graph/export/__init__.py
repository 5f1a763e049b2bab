"""Exports a trained model for serving: `serving_graph` builds it, `write` writes it, `report` measures it."""
