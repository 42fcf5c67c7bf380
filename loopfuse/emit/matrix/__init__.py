"""Contractions: sums of products of two operands by tiles, on the matrix units or without, with what stands around them."""
