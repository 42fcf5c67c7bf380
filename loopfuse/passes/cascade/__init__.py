"""Dependent folds over one axis in one pass, derived by algebra."""
