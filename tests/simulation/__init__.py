"""Deterministic simulation of a cluster: nodes, links and disks in one process, on a virtual clock, from a seed.

The product's code runs unchanged on an event loop whose clock jumps to the next event. The network and the disks are
simulated. `python -m tests.simulation SEED` runs one seed and prints its schedule.
"""
