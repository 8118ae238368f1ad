"""Training: the step on the devices, the loop of Algorithm 1, the checkpoints."""
