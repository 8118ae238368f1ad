"""Training: features, networks and their checkpoints, on all devices."""
