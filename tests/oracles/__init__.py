"""Independent answers, from the mathematics, for every script of the tests and of the examples."""
