"""The paper's experiments: the runs they need, what these show, and what the paper says of it."""
