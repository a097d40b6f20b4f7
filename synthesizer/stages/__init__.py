"""The stages that ask a model: plan, execute, rewrite, judge, refine, withhold, learn; pure parts beside the asking."""
