"""The commands of ``rods``: the outermost room, which may import every other."""
