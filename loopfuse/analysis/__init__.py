"""What passes and schedules ask of programs: the surroundings of a kernel, costs, accesses."""
