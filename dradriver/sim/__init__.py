"""The daemon's surroundings, simulated, for tests and for debugging: the kubelet and the scheduler's allocation."""
