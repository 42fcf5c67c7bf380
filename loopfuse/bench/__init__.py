"""Timing programs: on the GPU or on the reference interpreter, beside the roof, beside a former run."""
