"""Models to start from; each file is also the documentation of the model API."""
