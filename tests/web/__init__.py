"""The lighthouse's page in a browser."""
