"""Joining two kernels into one: which loops pair, what that requires, and the joint loop nest."""
