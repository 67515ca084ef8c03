"""What a run was, so that it can be told, found and made again: ``manifest.json``; torch-free."""
