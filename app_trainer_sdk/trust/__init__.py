"""What a job may be given that can run code when it is read; torch-free."""
