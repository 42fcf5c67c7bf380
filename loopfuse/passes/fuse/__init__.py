"""Loop fusion: which kernels become one, decided by cost."""
