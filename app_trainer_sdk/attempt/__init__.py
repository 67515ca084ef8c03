"""What one attempt of a job does before its ranks begin and after they ended. It imports no torch."""
