"""Planted faults: mistakes that compilers make, planted one at a time, and the checks of the suite that must find them.

`python -m tests.mutants` plants each and prints which check found it, after how many examples. Nothing in loopfuse knows
of this: a fault is a changed function in memory.
"""
