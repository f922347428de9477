"""What is optimized, on whose data: objectives, users, losses, synthetic and real problems."""
