"""What happens inside a worker process before and around the user's script."""
