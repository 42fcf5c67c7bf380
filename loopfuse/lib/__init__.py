"""The standard library, written in the language itself: nn.lf, image.lf, stats.lf and linalg.lf."""
