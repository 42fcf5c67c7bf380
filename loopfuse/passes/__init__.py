"""The passes: from the lowered program to the fewest and best kernels, a step at a time."""
