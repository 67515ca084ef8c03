"""What is published, as JSON Schema: job, describe, plan, event, result, manifest. Imported when asked for."""
