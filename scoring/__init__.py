"""The mathematics of packing: which nodes and cards fit a demand, and which of them to prefer.

numpy alone, and nobody of ours: the service, the simulator and the tests all call the same functions.
"""
