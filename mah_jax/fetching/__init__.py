"""Files from the network: each arrives whole and verified, or not at all."""
