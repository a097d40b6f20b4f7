"""A recorded run opened, learned, played and judged again. The only part of the trainer that imports ``analysis``."""
