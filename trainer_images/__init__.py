"""Trainer images: each a folder that stands alone. They never import each other."""
