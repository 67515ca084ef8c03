"""What is published, as JSON Schema: job, describe, event, result, manifest. Imported only when asked for."""
