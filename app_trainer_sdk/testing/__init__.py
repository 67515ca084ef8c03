"""What authors test with: the conformance kit and small trainers. Nothing in production imports it."""
