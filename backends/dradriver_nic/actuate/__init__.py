"""Changing links, functions and RDMA devices: what the steps are made of."""
