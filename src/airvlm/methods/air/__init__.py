"""AIR, adaptive visual reinforcement, section by section of the paper."""
