"""From a fused kernel to a plan: which family of schedules takes it, at what cost, or why none does."""
