"""Peers that break rules, flood, lie or listen: what they are told, and what they cost."""
