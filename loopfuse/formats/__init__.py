"""File formats, one module each: bytes on disk to arrays and back, trusting nothing that a file says of itself."""
